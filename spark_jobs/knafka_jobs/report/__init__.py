"""Reports on failures (what failed, where and since when), as a JSON document and as an HTML
page."""
