"""Letters and shapes: measuring, fitting and drawing text, marks as outlines, and pixels as a PNG."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D, IdentityTransform
from numpy.typing import NDArray
from PIL import Image

from meetupq.palette import MARKS

Pixels = NDArray[np.uint8]

_RULER: Final = cast(Any, RendererAgg)(1, 1, 72)
FONT: Final = "DejaVu Sans"  # ships with matplotlib, so the pictures look alike everywhere


@lru_cache(maxsize=64)
def font(size: float, bold: bool) -> FontProperties:
    return FontProperties(family=FONT, size=size, weight="bold" if bold else "normal")


@lru_cache(maxsize=8192)
def text_width(text: str, size: float = 13, bold: bool = False) -> float:
    """The width of a text in CSS pixels, with one to spare for other pixel ratios."""
    return float(_RULER.get_text_width_height_descent(text, font(size, bold), False)[0]) + 1


@lru_cache(maxsize=8192)
def fit(text: str, room: float, size: float = 13, bold: bool = False, least: int = 3) -> str:
    """The text, cut with an ellipsis so that it fits; "" where fewer than `least` letters would be left."""
    if len(text) <= 120 and text_width(text, size, bold) <= room:
        return text
    # Nothing longer fits anywhere, and to measure thousands of letters takes seconds.
    cuts = (text[:length] + "…" for length in range(min(len(text) - 1, 120), least - 1, -1))
    return next((cut for cut in cuts if text_width(cut, size, bold) <= room), "")


@lru_cache(maxsize=8192)
def plain(text: str) -> str:
    """One line of text of which the font has every letter: a missing one would warn in the middle of a lesson."""
    known = get_font(findfont(font(13, True))).get_charmap()
    return "".join(letter if ord(letter) in known else "\ufffd" for letter in " ".join(text.split()))


SHAPES: Final = {
    "hourglass": Path([(-0.75, 1), (0.75, 1), (-0.75, -1), (0.75, -1), (-0.75, 1)], closed=True),
    "burst": Path.unit_regular_star(8, 0.42),
    # A shield with a bar across it, which is drawn the other way round and so is a hole.
    "shield": Path(
        [(-0.85, 0.85), (0, 1), (0.85, 0.85), (0.8, -0.1), (0, -1), (-0.8, -0.1), (-0.85, 0.85),
         (-0.5, 0.1), (0.5, 0.1), (0.5, 0.38), (-0.5, 0.38), (-0.5, 0.1)],
        [1, 2, 2, 2, 2, 2, 79, 1, 2, 2, 2, 79],
    ),
}  # fmt: skip
"""The shapes that the font lacks."""


@lru_cache(maxsize=64)
def shape(kind: str) -> Path:
    """A mark as an outline around (0, 0), so that one Line2D draws all marks of a kind."""
    glyph = MARKS[kind][0]
    if glyph in SHAPES:
        return SHAPES[glyph]
    path = TextPath((0, 0), glyph, size=100, prop=font(13, False))
    box = path.get_extents()
    return path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))


# --- text as pixels ----------------------------------------------------------------------------------

_MARGIN: Final = 2


@lru_cache(maxsize=2048)
def _letters(words: str, size: float, bold: bool, ratio: float) -> tuple[Pixels, int]:
    """How much of each device pixel a text covers, 0 to 255, and how far its baseline is from the top.

    Drawn by Agg, as the letters of an ordinary figure are. What a live picture says it says again and again, and to
    draw it anew was two thirds of a frame.
    """
    columns = int(np.ceil((text_width(words, size, bold) + 2 * _MARGIN) * ratio))
    up, down = int(np.ceil(1.2 * size * ratio)), int(np.ceil(0.5 * size * ratio))
    dots = 72 * ratio
    figure = Figure(figsize=(columns / dots, (up + down) / dots), dpi=dots, facecolor="white")
    canvas: Any = FigureCanvasAgg(figure)
    written = figure.text(_MARGIN, down, words, transform=IdentityTransform(), parse_math=False, usetex=False)
    written.set(color="black", fontproperties=font(size, bold))
    canvas.draw()
    return 255 - np.array(canvas.buffer_rgba())[..., 0], up


def write(pixels: Pixels, x: float, y: float, words: str, colour: str, size: float, bold: bool, ratio: float) -> None:
    """Put a text into pixels; x and y are those of its beginning and its baseline, whole device pixels from the top."""
    letters, up = _letters(words, size, bold, ratio)
    left, top = round(x) - _MARGIN, round(y) - up
    right, bottom = left + letters.shape[1], top + letters.shape[0]
    height, width = pixels.shape[:2]
    if left >= width or top >= height or right <= 0 or bottom <= 0:
        return
    cut = letters[max(-top, 0) : height - top if bottom > height else None]
    cut = cut[:, max(-left, 0) : width - left if right > width else None]
    part = pixels[max(top, 0) : min(bottom, height), max(left, 0) : min(right, width), :3]
    # As Agg blends: the difference, times the share of 255 that is covered, rounded.
    product = (_rgb(colour) - part.astype(np.int32)) * cut[..., None] + 128
    part += ((product + (product >> 8)) >> 8).astype(np.uint8)


@lru_cache(maxsize=256)
def _rgb(colour: str) -> NDArray[np.int32]:
    return np.round(np.array(to_rgb(colour)) * 255).astype(np.int32)


# --- pixels as a PNG ---------------------------------------------------------------------------------


class Shown(Figure):
    """A figure that a notebook shows by itself: without pyplot nobody else has told it how."""

    def _repr_png_(self) -> bytes:
        FigureCanvasAgg(self)
        return encode(self)


def encode(figure: Figure) -> bytes:
    """A figure as PNG bytes, without any loss."""
    canvas: Any = figure.canvas
    canvas.draw()
    return _png(Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]))


def encode_small(pixels: Pixels, paper: str) -> bytes:
    """Pixels as PNG bytes in 256 colours: half the time and a third of the bytes; no colour is off by more than a few
    of 255, and the paper is exact."""
    height, width = pixels.shape[:2]
    picture = Image.frombuffer("RGBX", (width, height), np.ascontiguousarray(pixels), "raw", "RGBX", 0, 1)
    small = picture.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    palette = np.array(small.getpalette(), dtype=np.int32).reshape(-1, 3)
    palette[np.abs(palette - _rgb(paper)).max(axis=1) <= 3] = _rgb(paper)
    small.putpalette(palette.astype(np.uint8).tobytes())
    return _png(small)


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "png", compress_level=1)
    return file.getvalue()
