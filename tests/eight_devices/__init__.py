"""Tests that need eight devices: pytest runs them in processes of their own.

`tests/verbs/test_on_eight_devices.py` starts them; by hand it is

    export XLA_FLAGS=--xla_force_host_platform_device_count=8
    python -m pytest tests/eight_devices/loading.py
"""
