"""Lesson 01: a device's two limits, and the roofline that they make."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.roofline.lesson import LESSON
from grader.checks.roofline.matmul import QUOTIENT, as_float
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.data import load_devices
from inferlab.roofline import attainable_flops_per_s, device_rates, ridge_point

DEVICES = load_devices()


def _draw_device(rng: np.random.Generator) -> Inputs:
    """A record like those of devices.json, with other numbers. fp8 is not twice bf16 here."""
    bf16 = float(rng.integers(40, 300) * 4 + 1)
    peaks = {"bf16": bf16 * 1.5, "fp16": bf16, "fp8": 2.5 * bf16, "int8_tops": 3 * bf16}
    link = float(rng.integers(100, 900))
    device = {
        "name": "a device made up for this case",
        "memory_gb": int(rng.choice([24, 48, 96])),
        "bandwidth_gb_s": float(rng.integers(1000, 8000)),
        "peak_dense_tflops": {**peaks, "fp4": None},
        "interconnect": {"bidirectional_gb_s": link, "per_direction_gb_s": link / 2},
    }
    return {"device": device, "precision": str(rng.choice(["fp16", "fp8", "int8_tops"]))}


CASES = (
    given("H100 SXM, bf16", device=DEVICES["h100-sxm"], precision="bf16"),
    given("L4, fp8", device=DEVICES["l4"], precision="fp8"),
    given("a laptop's processor", device=DEVICES["laptop-cpu"], precision="bf16"),
    given("T4: no bf16 units", device=DEVICES["t4"], precision="bf16"),
    given("A100 80 GB: no fp8 units", device=DEVICES["a100-80-sxm"], precision="fp8"),
    given("a precision that no record has", device=DEVICES["h100-sxm"], precision="fp64"),
)


def _peak(device: Any, precision: str) -> float:
    peak = device["peak_dense_tflops"].get(precision)
    if peak is None:
        raise ValueError("no such peak")
    return peak * 1e12


def _bandwidth(device: Any) -> float:
    return device["bandwidth_gb_s"] * 1e9


def _rates(change: Callable[[Any, str], Any]) -> Callable:
    return lambda device, precision: change(device, precision)


def _fall_back(device: Any, precision: str) -> float:
    peaks = device["peak_dense_tflops"]
    return (peaks.get(precision) or peaks["fp16"]) * 1e12


def _rates_in_place(device, precision):
    peak = _peak(device, precision)
    device["bandwidth_gb_s"] *= 1e9
    return device["bandwidth_gb_s"], peak


def _rates_step_by_step(device, precision):
    for name, tera in device["peak_dense_tflops"].items():
        if name == precision and tera is not None:
            return [1e9 * device["bandwidth_gb_s"], 1e12 * tera]
    raise ValueError(f"no {precision}")


def _rates_by_try(device, precision):
    try:
        return 1e9 * device["bandwidth_gb_s"], 1e12 * device["peak_dense_tflops"][precision]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no {precision}") from error


def _rates_array(device, precision):
    known = {k: v for k, v in device["peak_dense_tflops"].items() if v}
    if precision not in known:
        raise ValueError(precision)
    return np.array([device["bandwidth_gb_s"] / 1e3, known[precision]]) * 1e12


RATES = Exercise(
    id="device_rates",
    reference=device_rates,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Two numbers to find and two prefixes to take away: giga is 1e9, tera is 1e12.",
        'device["peak_dense_tflops"].get(precision) is None where the precision is not there, and '
        "where it is there as None: one test for both.",
        'peak = device["peak_dense_tflops"].get(precision); if peak is None: raise ValueError(…); '
        'return device["bandwidth_gb_s"] * 1e9, peak * 1e12',
    ),
    cases=CASES,
    draw=_draw_device,
    wrong={
        "the two are swapped: bandwidth comes first": lambda device, precision: (
            _peak(device, precision),
            _bandwidth(device),
        ),
        "it changes its input device in place; work on a copy": _rates_in_place,
        "still in GB/s and TFLOP/s: bytes/s and FLOP/s are asked": lambda device, precision: (
            device["bandwidth_gb_s"],
            _peak(device, precision) / 1e12,
        ),
        "the peak with sparsity, twice the dense one: it needs weights that are half zeros": (
            lambda device, precision: (_bandwidth(device), 2 * _peak(device, precision))
        ),
        "GB taken as GiB: a data sheet's GB/s are 1e9 bytes a second": (
            lambda device, precision: (
                device["bandwidth_gb_s"] * 2**30,
                _peak(device, precision),
            )
        ),
        "GB/s taken as gigabits: 1 GB is 1e9 bytes": lambda device, precision: (
            _bandwidth(device) / 8,
            _peak(device, precision),
        ),
        "tera taken as giga: 1 TFLOP/s is 1e12 FLOP/s": lambda device, precision: (
            _bandwidth(device),
            _peak(device, precision) / 1e3,
        ),
        "always the bf16 peak: read the one of the precision asked": lambda device, precision: (
            _bandwidth(device),
            _peak(device, "bf16"),
        ),
        "the size of the memory in place of its bandwidth": lambda device, precision: (
            device["memory_gb"] * 1e9,
            _peak(device, precision),
        ),
        "the link to other devices in place of the device's own memory": lambda device, precision: (
            device["interconnect"]["bidirectional_gb_s"] * 1e9,
            _peak(device, precision),
        ),
        "falls back on fp16 where the precision is missing: raise a ValueError": (
            lambda device, precision: (_bandwidth(device), _fall_back(device, precision))
        ),
        "a peak of 0 where the device has none: raise a ValueError": lambda device, precision: (
            _bandwidth(device),
            (device["peak_dense_tflops"].get(precision) or 0) * 1e12,
        ),
        "None is not caught: a precision may be listed without a peak": lambda device, precision: (
            _bandwidth(device),
            device["peak_dense_tflops"][precision] * 1e12,
        ),
    },
    right={
        "a search through the record, as a list": _rates_step_by_step,
        "try, and translate the error": _rates_by_try,
        "as an array": _rates_array,
    },
)

RIDGE = Exercise(
    id="ridge_point",
    reference=ridge_point,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    uses=("device_rates",),
    hints=(
        "At the ridge, bringing the bytes takes exactly as long as computing on them.",
        "bytes / bandwidth = bytes * intensity / peak. Solve for the intensity, in bytes/s and "
        "FLOP/s, not in giga and tera.",
        "bandwidth, peak = device_rates(device, precision); return peak / bandwidth",
    ),
    cases=CASES,
    draw=_draw_device,
    drive=as_float,
    comparison=QUOTIENT,
    wrong={
        "upside down: bytes for each FLOP": lambda device, precision: (
            _bandwidth(device) / _peak(device, precision)
        ),
        "TFLOP/s over GB/s: the prefixes differ by 1,000": lambda device, precision: (
            _peak(device, precision) / 1e12 / device["bandwidth_gb_s"]
        ),
        "the peak with sparsity: twice the dense one": lambda device, precision: (
            2 * _peak(device, precision) / _bandwidth(device)
        ),
        "always bf16: the ridge moves with the precision of the arithmetic": (
            lambda device, precision: _peak(device, "bf16") / _bandwidth(device)
        ),
        "peak over the size of the memory: it is the bandwidth that limits": (
            lambda device, precision: _peak(device, precision) / (device["memory_gb"] * 1e9)
        ),
        "GB taken as GiB: a data sheet's GB/s are 1e9 bytes a second": lambda device, precision: (
            _peak(device, precision) / (device["bandwidth_gb_s"] * 2**30)
        ),
        "rounded to a whole number": lambda device, precision: (
            _peak(device, precision) // _bandwidth(device)
        ),
        "falls back on fp16 where the precision is missing: raise a ValueError": (
            lambda device, precision: _fall_back(device, precision) / _bandwidth(device)
        ),
        "the two are multiplied: the ridge is a ratio": lambda device, precision: (
            _peak(device, precision) * _bandwidth(device)
        ),
    },
    right={
        "from the record": lambda device, precision: (
            _peak(device, precision) / (device["bandwidth_gb_s"] * 1e9)
        ),
        "with the prefixes cancelled": lambda device, precision: (
            1000 * (_peak(device, precision) / 1e12) / device["bandwidth_gb_s"]
        ),
        "from seconds for a byte and for a FLOP, in NumPy": lambda device, precision: (
            np.float64(1 / _bandwidth(device)) / np.float64(1 / _peak(device, precision))
        ),
    },
)

# ---- the roof -----------------------------------------------------------------------------------


def _draw_roof(rng: np.random.Generator) -> Inputs:
    bandwidth = float(rng.integers(100, 4000)) * 1e9
    ridge = float(rng.uniform(20, 400))
    shares = np.array([0.003, 0.37, 0.93, 1.07, 3.1, 40.0]) * rng.uniform(0.99, 1.01, 6)
    return {
        "intensities": [float(share * ridge) for share in shares],
        "bandwidth_bytes_per_s": bandwidth,
        "peak_flops_per_s": bandwidth * ridge,
    }


def _drive_roof(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """One call for each intensity: below, near and above the ridge."""
    bandwidth, peak = inputs["bandwidth_bytes_per_s"], inputs["peak_flops_per_s"]
    seen = {}
    for intensity in inputs["intensities"]:
        value = answer(intensity=intensity, bandwidth_bytes_per_s=bandwidth, peak_flops_per_s=peak)
        seen[f"at {intensity:.4g} FLOP/byte"] = as_float(lambda value=value: value, {})
    return seen


def _roof(change: Callable[[float, float, float], Any]) -> Callable:
    def answer(intensity, bandwidth_bytes_per_s, peak_flops_per_s):
        return change(intensity, bandwidth_bytes_per_s, peak_flops_per_s)

    return answer


ATTAINABLE = Exercise(
    id="attainable_flops_per_s",
    reference=attainable_flops_per_s,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "Two limits hold at the same time. Which of two limits is felt?",
        "Memory alone would allow intensity * bandwidth FLOP/s; the units alone would allow the "
        "peak. The lower one is felt.",
        "min(peak_flops_per_s, intensity * bandwidth_bytes_per_s)",
    ),
    cases=(
        given(
            "3e12 bytes/s, 1e15 FLOP/s",
            intensities=[1.0, 100.0, 333.0, 334.0, 1000.0],
            bandwidth_bytes_per_s=3e12,
            peak_flops_per_s=1e15,
        ),
        given(
            "no bytes' worth of work",
            intensities=[0.0],
            bandwidth_bytes_per_s=3e12,
            peak_flops_per_s=1e15,
        ),
    ),
    draw=_draw_roof,
    drive=_drive_roof,
    comparison=QUOTIENT,
    wrong={
        "the larger of the two limits: the smaller one is felt": _roof(
            lambda i, bw, peak: max(peak, i * bw)
        ),
        "the peak whatever the intensity: left of the ridge memory is the limit": _roof(
            lambda i, bw, peak: peak
        ),
        "the slope without the roof: no work runs faster than the peak": _roof(
            lambda i, bw, peak: i * bw
        ),
        "the two limits are added": _roof(lambda i, bw, peak: peak + i * bw),
        "as if reading and computing took turns: the roofline lets them overlap": _roof(
            lambda i, bw, peak: 0.0 if i == 0 else 1 / (1 / peak + 1 / (i * bw))
        ),
        "bandwidth divided by the intensity: each byte brings `intensity` FLOPs": _roof(
            lambda i, bw, peak: min(peak, bw / i if i else peak)
        ),
        "compares the bandwidth itself with the peak: multiply it by the intensity": _roof(
            lambda i, bw, peak: min(peak, bw)
        ),
        "the share of the peak: FLOP/s are asked": _roof(
            lambda i, bw, peak: min(peak, i * bw) / peak
        ),
        "0 beyond the ridge: there the peak holds": _roof(
            lambda i, bw, peak: i * bw if i < peak / bw else 0.0
        ),
    },
    right={
        "from the ridge": _roof(lambda i, bw, peak: peak if i >= peak / bw else i * bw),
        "as a share of the peak": _roof(lambda i, bw, peak: peak * min(1.0, i * bw / peak)),
        "np.minimum": _roof(lambda i, bw, peak: np.minimum(peak, np.float64(i) * bw)),
        "from seconds": _roof(
            lambda i, bw, peak: 1 / max(1 / peak, 1 / (i * bw) if i else math.inf)
        ),
    },
)
