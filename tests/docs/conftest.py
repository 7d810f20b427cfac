"""Pages that need a server have the ones of the tests of engines."""

from __future__ import annotations

from engines.etcd.fixtures import etcd_node as etcd_node
from engines.postgresql.fixtures import _server as _server
from engines.postgresql.fixtures import postgres as postgres
