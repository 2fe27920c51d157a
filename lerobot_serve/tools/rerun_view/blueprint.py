# SPDX-License-Identifier: Apache-2.0
"""
Lays a view out: cameras and events above, a plot for each joint, states and times below.

Imports the package rerun. Pure functions; any thread.
"""

from __future__ import annotations

from typing import Any

import rerun as rr
import rerun.blueprint as rrb

from lerobot_serve.tools.rerun_view.entries import (
    CAMERAS,
    EVENTS,
    IMAGES,
    joint_groups,
    JOINTS,
    NODES,
    Path,
    QUEUE,
    REQUEST,
    RobotLayout,
    ROBOTS,
    STATES,
    TIME,
    ViewLayout,
)

GRID_COLUMNS = 3
# the rest is there for who looks for it
REQUEST_CURVES = ['$origin/**', '- $origin/processing_ms']


def make_blueprint(layout: ViewLayout, *, window_s: float = 0.0) -> rrb.Blueprint:
    """Return the view of all robots and nodes; plots show `window_s` before the cursor, 0: all."""
    tabs = [robot_view(name, robot, window_s) for name, robot in layout.robots.items()]
    if layout.nodes:
        tabs.append(nodes_view(layout.nodes, window_s))
    if layout.images:
        views = [
            rrb.Spatial2DView(origin=_origin(IMAGES, each), name=each) for each in layout.images
        ]
        tabs.append(rrb.Grid(*views, name=IMAGES))
    return rrb.Blueprint(
        rrb.Tabs(*tabs, active_tab=0) if len(tabs) > 1 else tabs[0],
        rrb.TimePanel(state='collapsed', timeline=TIME),
        collapse_panels=True,
    )


def robot_view(name: str, robot: RobotLayout, window_s: float) -> Any:
    root = (ROBOTS, name)
    cameras = [
        rrb.Spatial2DView(origin=_origin(*root, CAMERAS, each), name=each.rpartition('.')[2])
        for each in robot.cameras
    ]
    rows: list[Any] = [
        _beside(
            *cameras,
            _events(_origin(*root, EVENTS), ['LogLevel', 'Body']),
            shares=[*(2 for _ in cameras), 2],
        )
    ]
    if robot.joints:
        rows.append(joints_view(root, robot.joints, window_s))
    rows.append(
        _beside(
            rrb.StateTimelineView(origin=_origin(*root, STATES), name='states'),
            _plot_of(_origin(*root, REQUEST), REQUEST_CURVES, 'request [ms]', window_s),
            plot((*root, QUEUE), 'action queue [s]', window_s),
            shares=[2, 1, 1],
        )
    )
    shares = [4, 6, 5] if robot.joints else [1, 1]
    return rrb.Vertical(*rows, row_shares=shares, name=name)


def joints_view(root: Path, joints: list[str], window_s: float) -> Any:
    """Return a plot for each joint, and a tab for each group of joints."""
    groups = [
        rrb.Grid(
            *(
                plot((*root, JOINTS, joint), joint, window_s, is_legend_shown=i == 0)
                for i, joint in enumerate(members)
            ),
            grid_columns=GRID_COLUMNS,
            name=name,
        )
        for name, members in joint_groups(joints).items()
    ]
    return rrb.Tabs(*groups, active_tab=0) if len(groups) > 1 else groups[0]


def nodes_view(nodes: list[str], window_s: float) -> Any:
    """Return the view of servers, routers and rollouts."""

    def plot_of_each(name: str, *curves: str) -> Any:
        contents = [f'{_origin(NODES, node, curve)}/**' for node in nodes for curve in curves]
        return _plot_of(_origin(NODES), contents, name, window_s)

    return rrb.Vertical(
        rrb.StateTimelineView(origin=_origin(NODES), name='servers and routers'),
        _beside(
            plot_of_each('share of new episodes [%]', 'share_percent'),
            plot_of_each('load', 'load'),
            plot_of_each('inference [ms]', 'inference_ms_p50', 'inference_ms_p99'),
        ),
        # which node: its path
        _events(_origin(NODES), ['EntityPath', 'LogLevel', 'Body']),
        row_shares=[3, 2, 2],
        name='servers',
    )


def _events(origin: str, columns: list[Any]) -> Any:
    return rrb.TextLogView(
        origin=origin,
        name='events',
        columns=rrb.TextLogColumns(timeline_columns=[TIME], text_log_columns=columns),
    )


def plot(root: Path, name: str, window_s: float, *, is_legend_shown: bool = True) -> Any:
    return _plot_of(_origin(*root), '$origin/**', name, window_s, is_legend_shown=is_legend_shown)


def _plot_of(
    origin: str,
    contents: str | list[str],
    name: str,
    window_s: float,
    *,
    is_legend_shown: bool = True,
) -> Any:
    return rrb.TimeSeriesView(
        origin=origin,
        contents=contents,
        name=name,
        plot_legend=rrb.PlotLegend(visible=is_legend_shown),
        time_ranges=_window(window_s),
    )


def _window(window_s: float) -> Any:
    if not window_s:
        return None
    return rr.VisibleTimeRange(
        TIME,
        start=rr.TimeRangeBoundary.cursor_relative(seconds=-window_s),
        end=rr.TimeRangeBoundary.cursor_relative(),
    )


def _beside(*views: Any, shares: list[int] | None = None) -> Any:
    return rrb.Horizontal(*views, column_shares=shares)


def _origin(*path: str) -> str:
    return rr.new_entity_path(list(path))
