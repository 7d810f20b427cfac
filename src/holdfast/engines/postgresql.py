"""Locks in a PostgreSQL database."""

from __future__ import annotations

from .postgresql_schema import ddl as ddl
from .postgresql_schema import init as init
from .postgresql_schema import survey as survey
