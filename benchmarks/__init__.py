"""What is claimed to be fast, measured: ``python -m benchmarks [--quick] [PART ...]``."""
