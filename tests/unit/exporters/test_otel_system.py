"""What is asked of the system and of the GPU's driver, which is made up here."""

from __future__ import annotations

import ctypes
import resource

import pytest

from memexport.exporters import _otel_system as system
from memexport.model import Device

GPU = Device("cuda", 0, name="NVIDIA H200", uuid="1234-5", capacity_bytes=1 << 37)
ATTRIBUTES = (("hw.id", "1234-5"), ("hw.name", "NVIDIA H200"), ("hw.vendor", "NVIDIA"))


class Driver:
    """Knows one GPU."""

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):  # noqa: N802 - NVML's names
        if uuid != b"GPU-1234-5":
            return 6
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = 77
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):  # noqa: N802
        assert handle.value == 77
        found = ctypes.cast(memory, ctypes.POINTER(system._NvmlMemory))[0]
        found.total, found.free, found.used = 1 << 37, 1 << 36, 12_345
        return 0


@pytest.fixture
def driver(monkeypatch):
    system._nvml_handle.cache_clear()
    monkeypatch.setattr(system, "_nvml", Driver)
    yield
    system._nvml_handle.cache_clear()


def test_a_gpus_memory_is_that_of_all_processes(driver):
    assert system.gpu_bytes_in_use([Device("cpu"), GPU]) == {ATTRIBUTES: 12_345}


@pytest.mark.parametrize(
    "device", [Device("cuda", 1), Device("cuda", 0, uuid="9"), Device("xpu", 0, uuid="1")]
)
def test_a_gpu_that_is_not_known_has_none(driver, device):
    assert system.gpu_bytes_in_use([device]) == {}


def test_without_a_driver_nothing_is_said(monkeypatch):
    monkeypatch.setattr(system, "_nvml", lambda: None)
    assert system.gpu_bytes_in_use([GPU]) == {}


def test_the_process_takes_about_what_the_system_says():
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert most / 10 < system.resident_bytes() <= most * 1.1


def test_a_system_without_proc_says_the_most_that_it_ever_was(monkeypatch):
    monkeypatch.setattr(system, "Path", lambda _: Missing())
    assert system.resident_bytes() >= 10**6


class Missing:
    def read_text(self, encoding):
        raise FileNotFoundError
