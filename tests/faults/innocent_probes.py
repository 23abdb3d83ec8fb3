"""The same innocent probes as among the faults, alone."""

from fault_probes import INNOCENT as PROBES

__all__ = ["PROBES"]
