"""The prose of pages is judged by their sentences, not by code, links and tables (`make prose`)."""

from __future__ import annotations

from types import ModuleType

import pytest

from docs.test_site import loaded


@pytest.fixture
def prose(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("prose", monkeypatch)


PAGE = """# A heading that is not a sentence

One sentence
on two lines. Another with `a.b()` and [a link](x.md).

- an item
  that goes on
- the next one

| a | b |
|---|---|
| short | a cell that has a whole sentence in it |

```sh
whoever --for ever
```
"""


def test_only_prose_counts(prose: ModuleType) -> None:
    assert prose.prose(PAGE).split("\n\n") == [
        "One sentence on two lines. Another with code and a link.",
        "an item that goes on",
        "the next one",
        "a cell that has a whole sentence in it",
    ]


def test_text_generated_between_two_marks_does_not_count(prose: ModuleType) -> None:
    page = "Before.\n\n<!-- measured -->\nWhoever measured this.\n<!-- /measured -->\n\nAfter.\n<!-- a mark alone -->\n"
    assert prose.prose(page).split("\n\n") == ["Before.", "After."]


def test_the_figures_count_whole_sentences(prose: ModuleType) -> None:
    found = prose.figures("One two three. Four five: six seven.\n\nEight")
    assert (found.words, found.mean, found.longest, found.sentence) == (8, 2.7, 4, "Four five: six seven.")


def test_a_sentence_may_begin_with_code_or_a_small_letter(prose: ModuleType) -> None:
    text = prose.prose("- It holds since 6.6. `a.b()`, e.g. a lock, follows (now). holdfast waits.\n")
    assert prose.sentences(text) == ["It holds since 6.6.", "code, e.g. a lock, follows (now).", "holdfast waits."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It is free again.", None),
        ("Whoever comes may enter.", "“Whoever”"),
        ("Who has waited may enter.", "“Who has waited may enter.”"),
        ("Who has waited? All of them.", None),
        ("It is is free.", "lexical illusion"),
        ("Up to 4 4-byte words, `a` `a`.", None),
        (" ".join(["word"] * 19 + ["other"] * 22) + ".", "41 words in one sentence"),
    ],
)
def test_a_word_or_a_sentence_that_reads_badly_is_found(prose: ModuleType, text: str, said: str | None) -> None:
    found = [each for each in prose.problems("page.md", text) if "illusion in 'word" not in each]
    assert (not found) if said is None else any(said in each for each in found), found


def test_no_page_is_forgotten(prose: ModuleType) -> None:
    assert {"README.md", "SECURITY.md", "docs/index.md", "docs/howto/cron.md"} <= set(prose.pages())
