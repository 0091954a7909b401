"""The tables of a results database, and their version."""

from __future__ import annotations

from hashlib import sha256

from hpcprof.results.store.tables import METADATA, SCHEMA_VERSION

_DIGEST = "9039aa85d6697265"
"""The digest of the names of all tables and columns of the version in the test."""


def test_tables_of_other_columns_have_another_version() -> None:
    names = sorted(
        f"{table.name}.{column.name}" for table in METADATA.tables.values() for column in table.columns
    )
    digest = sha256("\n".join(names).encode()).hexdigest()[:16]
    # Else a store that an earlier state wrote is read without its migration, and lacks a column.
    assert (SCHEMA_VERSION, digest) == (21, _DIGEST), "raise SCHEMA_VERSION, and change both values here"
