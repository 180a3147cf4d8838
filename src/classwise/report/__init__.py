"""The report: one self-contained HTML page on a run, or on several side by side.

write_report(["runs/ce-0", "runs/cvs-0"], "report.html")
"""

from __future__ import annotations

from classwise.report.page import write_report
from classwise.report.verdict import verdict

__all__ = ["verdict", "write_report"]
