"""The palette serves people who see colours otherwise, on paper and at night, and every output alike."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from memexport.analysis.palette import (
    CATEGORY_COLOURS,
    COUNTER_COLOURS,
    OUT_OF_MEMORY,
    PHASE_SHADES,
    THEMES,
    category_label,
)
from memexport.exporters._flamegraph import category_name
from memexport.exporters._otel_modules import CATEGORIES
from memexport.model import Category, Phase

DASHBOARD = json.loads(
    (Path(__file__).parents[3] / "contrib/grafana-dashboard.json").read_text(encoding="utf-8")
)
# How people see linear RGB who lack one kind of cone: Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "full": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
# Oklab, https://bottosson.github.io/posts/oklab: distances there are about those that people see.
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]
LEAST_DISTANCE = 0.06
FSDP = "SHARDED", "ALL_GATHER", "REDUCE_SCATTER"
STACKS = {
    "all": list(CATEGORY_COLOURS),
    "one device": [c for c in CATEGORY_COLOURS if not any(word in c.name for word in FSDP)],
    "FSDP": [c for c in CATEGORY_COLOURS if c not in (Category.PARAMETER, Category.GRADIENT)],
}


def linear(colour):
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """As WCAG defines it."""
    light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def lab(colour, vision):
    seen = np.clip(np.array(VISIONS[vision]) @ linear(colour), 0, 1)
    return np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ seen)


@pytest.mark.parametrize("theme", THEMES)
def test_every_colour_stands_out_from_both_backgrounds(theme):
    colours = {**CATEGORY_COLOURS, **COUNTER_COLOURS, "out of memory": OUT_OF_MEMORY}
    low = {name: contrast(colour, THEMES[theme].surface) for name, colour in colours.items()}
    assert {name: value for name, value in low.items() if value < 3} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_texts_can_be_read_on_both_backgrounds(theme):
    colours = THEMES[theme]
    for background in (colours.surface, colours.page, colours.raised):
        assert contrast(colours.ink, background) > 7
        assert contrast(colours.muted, background) > 4.5


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("stack", STACKS)
def test_neighbours_in_a_stack_are_told_apart_by_everybody(vision, stack):
    pairs = itertools.pairwise(STACKS[stack])
    distances = {
        (one.name, other.name): np.linalg.norm(
            lab(CATEGORY_COLOURS[one], vision) - lab(CATEGORY_COLOURS[other], vision)
        )
        for one, other in pairs
    }
    assert {pair: value for pair, value in distances.items() if value < LEAST_DISTANCE} == {}


def test_every_category_and_phase_that_is_known_has_a_colour():
    assert set(CATEGORY_COLOURS) == set(Category) - {Category.UNKNOWN}
    assert set(PHASE_SHADES) == set(Phase) - {Phase.UNKNOWN}
    assert len({*CATEGORY_COLOURS.values()}) == len(CATEGORY_COLOURS)


def test_a_category_has_the_same_name_in_every_output():
    assert [category_label(number) for number in range(200)] == [
        category_name(number) for number in range(200)
    ]
    assert {category_label(category).replace(" ", "_") for category in CATEGORY_COLOURS} == {*CATEGORIES}


def overrides(title):
    (panel,) = (panel for panel in DASHBOARD["panels"] if panel["title"] == title)
    for override in panel["fieldConfig"]["overrides"]:
        assert override["matcher"]["id"] == "byName"
        (colour,) = override["properties"]
        assert colour["id"] == "color"
        assert colour["value"]["mode"] == "fixed"
        yield override["matcher"]["options"], colour["value"]["fixedColor"]


def test_the_dashboard_paints_categories_and_counters_with_the_palette():
    assert dict(overrides("Memory by category")) == {c.name.lower(): v for c, v in CATEGORY_COLOURS.items()}
    for title in ("Allocated, active, reserved", "Peaks between exports"):
        assert dict(overrides(title)) == dict(COUNTER_COLOURS)
