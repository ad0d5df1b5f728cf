"""How colours look on a dark page, where a CSS filter turns the course's figures round.

Contrast is WCAG 2.2's, the filters are those of the CSS Filter Effects specification.
"""

import re

import numpy as np
from matplotlib.colors import to_rgb

from labkit.figures.show import ON_DARK

RGB = tuple[float, float, float] | str
# hue-rotate(180deg): what is left of the luminance's own matrix when its cosine is -1.
GREY_PART = np.array([[0.213, 0.715, 0.072]] * 3)
HALF_TURN = 2 * GREY_PART - np.eye(3)


def on_dark(colour: RGB) -> RGB:
    """A colour of a figure as a dark page shows it."""
    amount = float(re.search(r"filter:invert\((\.\d+)\) hue-rotate\(180deg\)", ON_DARK)[1])
    inverted = amount + np.array(to_rgb(colour)) * (1 - 2 * amount)
    red, green, blue = np.clip(HALF_TURN @ np.clip(inverted, 0, 1), 0, 1)
    return float(red), float(green), float(blue)


def luminance(colour: RGB) -> float:
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def contrast(one: RGB, other: RGB) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def contrasts(one: RGB, other: RGB) -> tuple[float, float]:
    """Of two colours of a figure: on a light page, and on a dark one."""
    return contrast(one, other), contrast(on_dark(one), on_dark(other))
