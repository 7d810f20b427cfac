"""The checker of pages finds every kind of mistake, with its line, and passes good pages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from docs import run
from docs.session import Session
from docs.wanted import matches


def checked(tmp_path: Path, page: str, servers: object = "no server here") -> run.Report:
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    return run.run(path, lambda _: servers)  # type: ignore[arg-type,return-value]


NODE = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def failure(tmp_path: Path, page: str) -> str:
    """The only failure of a page."""
    report = checked(tmp_path, page)
    assert len(report.failures) == 1, report.failures
    return report.failures[0]


GOOD = """\
# A page

<!-- hidden: python
answer = 42
-->

```python
import pathlib

print(answer)
pathlib.Path("/run/lock/there").write_text("yes")
```

<!-- output -->
```text
41
```

```console
$ cat /run/lock/there  # what Python wrote
yes
$ NAME=$(( 6 * \\
>   7 ))
$ (exit 7)
$ echo $?
7
```

```sh
test "$NAME" = 42
```

```python
async def later():
    return 1


assert await later() == 1
```

<!-- file: bin/hello -->
```sh
#!/bin/sh
echo "hello, $1"
```

```console
$ bin/hello world
hello, …
```

<!-- not run: there is no such machine -->
```sh
reboot
make test ARGS="-k x"
holdfast run -w 3 -t "a b" --slots=2 lock -- make -n install # as root
```

```json
{"a": 1}
```
"""


def test_a_good_page_passes(tmp_path: Path) -> None:
    report = checked(tmp_path, GOOD)
    assert report.failures == []
    assert report.skipped == []


@pytest.mark.parametrize(
    ("page", "line", "said"),
    [
        ("```console\n$ echo one\ntwo\n```\n", 2, "wanted:\n    two\n  got:\n    one"),
        ("```console\n$ (exit 3)\n$ echo $?\n4\n```\n", 3, "got:\n    3"),
        ("```console\n$ nosuchcommand\n```\n", 2, "not found"),
        ("```console\n$ holdfast status --no-such-option x\n```\n", 2, "unrecognized arguments"),
        ("```console\n$ python -c 'import nothing'\n```\n", 2, "Traceback"),
        pytest.param("```console\n$ node -e 'nothing()'\n```\n", 2, "ReferenceError", marks=NODE),
        ("```console\necho no prompt\n```\n", 2, "begins with a command"),
        ("```python\nx = 1\n\nraise ValueError(x)\n```\n", 2, "line 4"),
        ("```python\nx = = 1\n```\n", 2, "no python"),
        ("```python\nimport os\n\nos._exit(9)\n```\n", 2, "ended, with status 9"),
        ("```sh\ntrue\nfalse\ntrue\n```\n", 2, "the shell ended, with status 1"),
        ("```sh\necho $nothing\n```\n", 2, "unbound variable"),
        ("```sh\n#!/bin/sh\nnosuchcommand\n```\n", 2, "not found"),
        pytest.param("```js\nthrow new Error('so')\n```\n", 2, "status 1", marks=NODE),
        ("```json\n{'a': 1}\n```\n", 2, "no json"),
        ("```toml\na = = 1\n```\n", 2, "no toml"),
        ("```yaml\na: [\n```\n", 2, "no yaml"),
        ("```ini\na = 1\n```\n", 2, "no ini"),
        ("```cobol\nx\n```\n", 1, "unknown language 'cobol'"),
        ("```\nx\n```\n", 1, "a fence without a language"),
        ("```rust\nfn main() {}\n```\n", 1, "nothing runs rust"),
        ("```sql\nselect 1;\n```\n", 1, "needs: postgresql"),
        ("<!-- not run: -->\n```sh\ntrue\n```\n", 1, "'not run' needs words"),
        ("<!-- not run: no machine -->\n```python\nx = = 1\n```\n", 3, "no python"),
        ("<!-- not run: no machine -->\n```sh\nif true\n```\n", 3, "bash cannot parse this"),
        ("<!-- not run: minutes -->\n```console\n$ make nonesuch\n```\n", 3, "no target 'nonesuch'"),
        ("<!-- not run: minutes -->\n```sh\nholdfast run -w 3 --slot 4 l -- x --y\n```\n", 3, "no option --slot"),
        ("```ini\n[Service]\nExecStart=/usr/bin/env holdfast reap -Z /x\n```\n", 2, "no option -Z"),
        ("<!-- needs: oracle -->\n```python\nx = 1\n```\n", 2, "needs oracle?"),
        ("<!-- file: x -->\n\nSome text.\n", 3, "no block follows"),
        ("<!-- file: ../x -->\n```sh\ntrue\n```\n", 3, "outside"),
        ("```python\nprint(1)\n", 1, "no end"),
        ("<!-- hidden: python\nprint(1)\n", 1, "no end"),
        ("```sh\nsleep 1000 &\n```\n", 2, "leaves processes behind:\nsleep 1000"),
        ("```python\nx = 1\n```\n<!-- new session -->\n```python\nprint(x)\n```\n", 6, "NameError"),
    ],
)
def test_every_kind_of_mistake_is_found_with_its_line(
    page: str, line: int, said: str, tmp_path: Path, monkeypatch: object
) -> None:
    if "sleep" in page:
        monkeypatch.setattr("docs.session._END", 0.1)  # type: ignore[attr-defined]
    found = failure(tmp_path, page)
    assert found.startswith((f"page.md:{line}: ", f"page.md: line {line}: ")), found
    assert said in found


def test_a_block_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.session.LIMIT", 0.3)
    assert "did not end within 0.3 s" in failure(tmp_path, "```console\n$ echo begun; sleep 1000\n```\n")
    assert "did not end within 0.3 s" in failure(tmp_path, "```python\nimport time\n\ntime.sleep(1000)\n```\n")


def test_a_process_that_a_page_may_leave_is_not_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.session._END", 0.1)
    assert checked(tmp_path, "<!-- leaves running: a daemon -->\n```sh\nsleep 1000 &\n```\n").failures == []


def test_a_process_left_by_a_page_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.session._END", 0.1)
    session = Session()
    session.shell("setsid sh -c 'echo $$; exec sleep 1000' & until [ -s tmp/.output ]; do :; done")
    assert session.end() == ["sleep 1000"]
    assert session._processes() == {}


def test_a_skipped_block_is_mentioned(tmp_path: Path) -> None:
    page = "<!-- needs: etcd -->\n```python\nraise ValueError\n```\n```python\nx = 1\n```\n"
    report = checked(tmp_path, page, "etcd is not installed")
    assert report.failures == []
    assert report.skipped == ["page.md:3: etcd is not installed"]
    assert report.ran == 1


def test_a_name_on_the_page_stands_for_a_server(tmp_path: Path) -> None:
    page = "<!-- needs: etcd -->\n```console\n$ echo x; echo etcd1.example:2379 | tr a-z A-Z\n1\n```\n"
    found = checked(tmp_path, page, {"etcd1.example:2379": "server"}).failures
    assert "got:\n    x\n    SERVER" in found[0]


def test_a_substitute_may_be_a_path_below_tmp(tmp_path: Path) -> None:
    """Such as the modules of npm in a clone: only the page's own directories are the session's."""
    page = "<!-- needs: etcd -->\n```console\n$ echo module /tmp/x | tr a-z A-Z\n1\n```\n"
    found = checked(tmp_path, page, {"module": "/tmp/clone/index.js"}).failures
    assert "got:\n    /TMP/CLONE/INDEX.JS" in found[0]
    assert not found[0].rstrip().endswith("INDEX.JS /TMP/X")


def test_a_unit_with_an_unknown_directive_fails(tmp_path: Path) -> None:
    unit = "[Unit]\nDescription=x\n[Service]\nExecStart=/nowhere/holdfast\n{}\n"
    page = "<!-- file: /etc/systemd/system/a.service -->\n```ini\n" + unit + "```\n"
    good, bad = checked(tmp_path, page.format("Type=exec")), checked(tmp_path, page.format("Tipe=exec"))
    assert good.failures == []
    if bad.skipped:
        pytest.skip(bad.skipped[0])
    assert "Tipe" in bad.failures[0]


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("holder    process 3786 (sh) on build7", "holder  process 12 (sh) on host3.example"),
        ("since 2026-11-21 08:11:32 (12 s ago)", "since 2027-01-02 00:00:00 (513 ms ago)"),
        ("id  b3b0b30a1e19", "id  123456789012"),
        ("a …\n…\nz", "a b\nc\nd\nz"),
        ("a\n…\nz", "a\nz"),
        ("a\nb", "a\n[1]+  Terminated              sleep 5\nb\nx/shell.sh: line 6:  6205 Killed     sh -c x"),
        ("user      deploy", "user      root"),
        ("a\nKilled", "a\nx/shell.sh: line 6:  6205 Killed     sh -c x"),
    ],
)
def test_variable_output_is_not_compared(shown: str, printed: str) -> None:
    assert matches(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("alive", "dead"),
        ("a", "a\nb"),
        ("a\nb", "a"),
        ("a … c", "a\nb c"),
        ("process 1 of 2", "process 1"),
        ("on build7", "on a"),
        ("2026-11-21", "7"),
    ],
)
def test_different_output_is_not_taken_for_equal(shown: str, printed: str) -> None:
    assert not matches(shown, printed)


def test_a_page_neither_sees_this_machine_nor_shows_it() -> None:
    session = Session()
    try:
        status, got = session.shell('cd /run/lock && pwd && echo "$HOME" && cd && exec 9>>x && ls /proc/$$/fd; :')
        assert status == 0
        lines = got.split()
        assert lines[:2] == ["/run/lock", "/home/you"]
        assert "9" in lines, "a script's own descriptors stay open"
        _, again = session.shell("ls -l /proc/self/fd")
        assert " 60 " not in again
        assert " 61 " not in again
        assert session.shell("echo 9 >&9; cat x")[1] == "9\n"
    finally:
        assert session.end() == []
    assert not session.home.exists()
