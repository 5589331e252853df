"""Parts of the side-by-side runs: servers, load, processes, cases, reports. Python's standard library only."""
