"""The report: what failed, where and since when, as a document for machines and a page."""
