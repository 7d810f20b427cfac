"""`postgresql init`: create what locks need in a database."""

from __future__ import annotations

from ..engines import engine_of
from .options import Namespace
from .outcome import DONE, masked, say, show


def postgresql_(options: Namespace) -> int:
    """Create the schema and the table if they do not exist; or only print the SQL for that."""
    if engine_of(options.url).name != "postgresql":
        raise ValueError(f"{masked(options.url)} is not a postgresql:// URL")
    from ..engines.postgresql import ddl, init, schema_of

    if options.print:
        show(ddl(schema_of(options.url, options.schema), options.grant).removesuffix("\n"))
        return DONE
    schema = init(options.url, options.schema, options.grant)
    if not options.quiet:
        need = "" if schema == "holdfast" else f"; locks there have ?schema={schema} in their URL"
        say(f"{masked(options.url).partition('#')[0]} is ready for locks: all is in its schema {schema}{need}")
    return DONE
