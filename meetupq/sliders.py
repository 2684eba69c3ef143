"""Timers to play with: sliders for a lease's durations, and at once what they would cost."""

from __future__ import annotations

from html import escape
from typing import Any, Final

import ipywidgets as widgets

from meetupq.errors import TimingError
from meetupq.forecast import LATE, Forecast
from meetupq.timing import Timing
from meetupq.view import BORDER

_STYLE: Final = """<style>
.meetupq-timers .widget-label { font-size: 14px; }
.meetupq-forecast { display: grid; grid-template-columns: auto 1fr; gap: 6px 16px; align-items: baseline;
  font-size: 15px; color: var(--jp-ui-font-color1, #1f2328); }
.meetupq-forecast b { font-size: 22px; text-align: right; font-variant-numeric: tabular-nums; }
.meetupq-twin { font-size: 13px; line-height: 1.35; padding: 8px; background: var(--jp-layout-color2, #f6f8fa); }
.meetupq-refused { padding: 8px; font-size: 15px; color: #fff; background: #b42318; border-radius: 4px; }
</style>"""


class TimerSliders(widgets.VBox):  # type: ignore[misc]  # ipywidgets has no type hints
    """Sliders for TTL, renewal, items and pause, and the forecast for where they stand.

    The same in code: `Forecast(timing.but(lease_ttl=..., renew=...), items=...)`; or set a slider's `value`.

    Args:
        timing: where the sliders stand at first; it also gives what has no slider.

    Attributes:
        ttl, renew, items, standbys, pause, takeover: the controls.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        most = max(20.0, 2 * timing.lease_ttl)
        self.ttl = _slider(widgets.FloatSlider, "TTL (s)", timing.lease_ttl, 1, most, 0.5, "how long a claim lives")
        self.renew = _slider(
            widgets.FloatSlider, "renew (s)", timing.renew, 0.1, most / 2, 0.1, "how often an owner renews it"
        )
        self.items = _slider(widgets.IntSlider, "items", 20, 1, 2000, 1, "how many work items have an owner")
        self.standbys = _slider(widgets.IntSlider, "standbys", 3, 1, 50, 1, "how many workers wait for a free item")
        self.pause = _slider(
            widgets.FloatSlider,
            "pause (s)",
            timing.lease_ttl / 2,
            0,
            most,
            0.1,
            "how long an owner hangs, though alive",
        )
        self.takeover = widgets.Dropdown(
            options=[*LATE], value="observe", description="takeover", tooltip="how a standby learns of the end"
        )
        self._told = widgets.HTML(layout=widgets.Layout(margin="0 0 0 24px", min_height="190px"))
        self._twin = widgets.HTML(layout=widgets.Layout(min_height="96px"))
        controls = [self.ttl, self.renew, self.items, self.standbys, self.pause, self.takeover]
        for control in controls:
            control.observe(lambda _: self._tell(), "value")
        self._tell()
        style = widgets.HTML(_STYLE, layout=widgets.Layout(display="none"))
        super().__init__(
            [style, widgets.HBox([widgets.VBox(controls), self._told]), self._twin],
            layout=widgets.Layout(width="892px", padding="12px", border=BORDER),
        )
        self.add_class("meetupq-timers")

    def __repr__(self) -> str:
        return "<TimerSliders>"

    @property
    def timing(self) -> Timing:
        """The durations that the sliders stand for.

        Raises:
            TimingError: they contradict each other; both numbers are named.
        """
        return self._timing.but(lease_ttl=float(self.ttl.value), renew=float(self.renew.value))

    @property
    def forecast(self) -> Forecast:
        """What to expect of them.

        Raises:
            TimingError: they contradict each other; both numbers are named.
        """
        return Forecast(self.timing, self.items.value, self.takeover.value, self.standbys.value)

    def _tell(self) -> None:
        try:
            forecast = self.forecast
        except TimingError as error:
            self._told.value = f'<div class="meetupq-refused">✗ {escape(str(error))}</div>'
            self._twin.value = f'<div class="meetupq-twin">{escape(str(error))}</div>'
            return
        pause = float(self.pause.value)
        facts = [
            (f"{forecast.worst:.2f} s", "from a death to the next owner, at worst"),
            (f"{forecast.typical:.2f} s", "as a rule"),
            (
                f"{forecast.messages:,.0f} /s",
                f"messages, {forecast.owner_messages:,.0f} of them renewals and their acks",
            ),
            (
                f"{100 * forecast.false_alarm(pause):.0f} %",
                f"of the pauses of {pause:g} s cost a living owner its lease",
            ),
            (f"{forecast.survives:.1f} s", "the longest pause that never does"),
        ]
        rows = "".join(f"<b>{figure}</b><span>{escape(what)}</span>" for figure, what in facts)
        self._told.value = f'<div class="meetupq-forecast">{rows}</div>'
        self._twin.value = f'<div class="meetupq-twin">{escape(str(forecast))}</div>'


def _slider(kind: Any, name: str, value: float, least: float, most: float, step: float, tooltip: str) -> Any:
    return kind(
        value=value, min=least, max=most, step=step, description=name, tooltip=tooltip,
        style={"description_width": "80px"}, layout=widgets.Layout(width="380px"),
    )  # fmt: skip
