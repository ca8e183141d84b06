"""The catalogs of Iceberg tables that `pyiceberg` has in its settings, and the tables that they name.

A table has the property `tandemmq.batch.QUERY` of each query that has landed in it. Must not know Spark.
"""

from __future__ import annotations

import re

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy import NullPool, create_engine

from tandemmq.errors import ConfigError

BATCH_PROPERTY = "tandemmq.batch."


def find_location(catalog: str, table: str) -> str | None:
    """Returns the location of a catalog table's files; None if there is no such table.

    Raises:  ConfigError for a catalog that is not in the settings, or cannot be used.
    """
    found = _load_table(catalog, table)
    return None if found is None else re.sub("^file:/(?!/)", "file:///", found.location())


def find_writers(catalog: str, table: str) -> list[str]:
    """Returns the queries that have landed in a table of a catalog."""
    found = _load_table(catalog, table)
    names = () if found is None else found.properties
    return [name.removeprefix(BATCH_PROPERTY) for name in names if name.startswith(BATCH_PROPERTY)]


def _load_table(catalog: str, table: str) -> Table | None:
    try:
        return open_catalog(catalog).load_table(table)
    except NoSuchTableError:
        return None
    except Exception as error:  # each kind of catalog has its own errors
        raise ConfigError(
            f"catalog {catalog}: {error}. Configure it in ~/.pyiceberg.yaml, or by variables like"
            f" PYICEBERG_CATALOG__{catalog.upper()}__URI"
        ) from error


def open_catalog(name: str) -> Catalog:
    """Returns the catalog of this name in the settings."""
    catalog = load_catalog(name)
    return close_connections(catalog) if isinstance(catalog, SqlCatalog) else catalog


def close_connections(catalog: SqlCatalog) -> SqlCatalog:
    """Closes each connection to a SQLite file after its use: a table holds its catalog, which is never
    closed.
    """
    engine = catalog.engine
    if engine.dialect.name == "sqlite" and engine.url.database not in (None, "", ":memory:"):
        engine.dispose()
        catalog.engine = create_engine(engine.url, echo=engine.echo, poolclass=NullPool)
    return catalog
