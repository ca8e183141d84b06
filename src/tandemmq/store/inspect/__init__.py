"""Inspects a store directory without opening it as a store: checks it, and rebuilds its derived files."""

from __future__ import annotations

from tandemmq.store.inspect.check import InspectOptions, StoreReport, check_store
from tandemmq.store.inspect.findings import Finding, Findings, Severity, StorePart
from tandemmq.store.inspect.index_check import IndexLayout
from tandemmq.store.inspect.repair import RepairOptions, RepairReport, repair_store

__all__ = [
    "Finding",
    "Findings",
    "IndexLayout",
    "InspectOptions",
    "RepairOptions",
    "RepairReport",
    "Severity",
    "StorePart",
    "StoreReport",
    "check_store",
    "repair_store",
]
