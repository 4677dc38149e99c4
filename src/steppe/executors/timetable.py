"""When the lanes of a captured step change clients, and how many lanes a federation needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

OVERHEAD = 1.0  # fixed cost of a step in units of one lane, measured on an H200 (0.10 ms + 0.099 ms per lane)


class Shift(NamedTuple):
    """A moment at which lanes change clients: rows to copy, and then what each lane is training."""

    leave: list[tuple[int, int]]  # (client, lane)
    enter: list[tuple[int, int]]  # (lane, client)
    lanes: list[list[int]]  # for each lane its client, the steps it has taken, and its steps in total (0: idle)


def count_replays(steps: Sequence[int], width: int) -> int:
    """Return the time at which all clients have taken their steps, each in one lane at a time."""
    return max([*steps, -(-sum(steps) // width)])


def make_timetable(steps: Sequence[int], width: int) -> tuple[dict[int, Shift], int]:
    """Return when lanes change clients, and the time at which all clients have taken their steps.

    Clients fill the lanes one after the other, up to the end. Who does not fit into what is left of a lane takes its
    first steps at the beginning of the next lane, and its last ones here. No lane is idle before the end, unless the
    longest client takes longer than all clients divided by the lanes (McNaughton's rule, 1959).

        >>> shifts, end = make_timetable([2, 2, 2], 2)
        >>> end, [(t, s.leave, s.enter) for t, s in shifts.items()]
        (3, [(0, [], [(0, 0), (1, 1)]), (1, [(1, 1)], [(1, 2)]), (2, [(0, 0)], [(0, 1)]), (3, [(1, 0), (2, 1)], [])])
    """
    end = count_replays(steps, width)
    enter, leave = defaultdict[int, list[tuple[int, int]]](list), defaultdict[int, list[tuple[int, int]]](list)
    lane = at = 0
    for client in sorted(range(len(steps)), key=lambda i: -steps[i]):
        left = steps[client]
        while left:
            here = min(left, end - at)
            enter[at].append((lane, client))
            leave[at + here].append((client, lane))
            left, lane, at = left - here, lane + (at + here == end), (at + here) % end
    shifts, taken, since = {}, [0] * len(steps), [0] * width
    lanes = [[0] * width for _ in range(3)]
    for t in sorted({*enter, *leave}):
        for client, lane in leave[t]:
            taken[client] += t - since[lane]
            lanes[2][lane] = 0
        for lane, client in enter[t]:
            since[lane], lanes[0][lane], lanes[1][lane], lanes[2][lane] = t, client, taken[client], steps[client]
        for lane in range(width):
            if lanes[2][lane]:
                lanes[1][lane] = taken[lanes[0][lane]] + t - since[lane]
        shifts[t] = Shift(leave[t], enter[t], [list(row) for row in lanes])
    return shifts, end


def choose_width(rounds: Sequence[Sequence[int]], most: int | None = None) -> int:
    """Return the number of lanes that takes the least time for rounds of clients with these numbers of steps.

    >>> choose_width([[50] * 10]), choose_width([[200, 20, 20, 20, 20, 20, 20]]), choose_width([[50] * 10], most=5)
    (10, 2, 5)
    """

    def seconds(width: int) -> float:
        return (width + OVERHEAD) * sum(count_replays(steps, width) for steps in rounds)

    widest = max(map(len, rounds))
    return min(range(min(widest, most or widest), 0, -1), key=seconds, default=1)  # none: nobody was drawn
