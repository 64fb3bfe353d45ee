"""Side-by-side measurements of fxforms against its peers: `python -m benchmarks --help`."""
