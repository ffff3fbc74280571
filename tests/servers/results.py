# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results of `run`: what was measured, and the table that it prints.

A result is what was measured of one server in one place:

  place, server, requests   its names, and the noun of its requests
  rounds[]                  for each step of each round its requests per second; `cpu_ns`, the CPU time of the server's
                            processes per request, and `busy_ns`, that of the load generator too
  publisher[]               the publisher's share of one CPU while attached, in per cent, for each round
  reads                     clock reads per request, or null
  read_ns                   what a read costs before and while attached, in nanoseconds, or null
"""

import statistics

STEPS = ("before", "attached", "detached")


def median(result, step, figure="per_second"):
    return statistics.median(each[step][figure] for each in result["rounds"])


def ratios(result, step):
    """Returns the ratios of requests per second to those before, of all rounds."""
    return [each[step]["per_second"] / each["before"]["per_second"] for each in result["rounds"]]


def predicted(result):
    """Returns the gain in CPU time that the clock reads explain: what a request takes while attached, and besides what its
    reads took before, against the former. None without these figures."""
    spent = median(result, "attached", "cpu_ns")
    if not result["reads"] or not result["read_ns"] or not spent:
        return None
    return 1 + result["reads"] * (result["read_ns"]["before"] - result["read_ns"]["attached"]) / spent


def figure(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def spread(values):
    return f"{statistics.median(values):.2f}x ({min(values):.2f}..{max(values):.2f})"


HEADS = ("server", "reads/request", "before/s", "attached/s", "attached", "detached", "CPU us/request", "less CPU", "predicted", "publisher")


def row(result):
    gain = predicted(result)
    cpu_before, cpu_attached = (median(result, step, "cpu_ns") for step in ("before", "attached"))
    return (
        result["server"],
        figure(result["reads"]) if result["reads"] is not None else "-",
        figure(median(result, "before")),
        figure(median(result, "attached")),
        spread(ratios(result, "attached")),
        spread(ratios(result, "detached")),
        f"{figure(cpu_before / 1000)} → {figure(cpu_attached / 1000)}" if cpu_before else "-",
        f"{cpu_before / cpu_attached:.2f}x" if cpu_before and cpu_attached else "-",
        f"{gain:.2f}x" if gain else "-",
        f"{statistics.median(result['publisher']):.2f} %" if result["publisher"] else "-",
    )


def table(results):
    """Returns the tables of the places, as text."""
    lines = []
    for place in dict.fromkeys(each["place"] for each in results):
        here = [each for each in results if each["place"] == place]
        lines += ["", title(here), ""]
        columns = zip(HEADS, *map(row, here))
        # Without those in which nothing was measured.
        rows = list(zip(*(column for column in columns if set(column[1:]) != {"-"})))
        widths = [max(map(len, column)) for column in zip(*rows)]
        for cells in rows:
            first, *others = (cell.ljust(width) if which == 0 else cell.rjust(width) for which, (cell, width) in enumerate(zip(cells, widths)))
            lines.append("  ".join([first, *others]))
    return "\n".join(lines)


def title(here):
    """Returns the title of the table of a place's results."""
    costs = [each["read_ns"] for each in here if each["read_ns"]]
    before, attached = (statistics.median(each[step] for each in costs) if costs else 0 for step in ("before", "attached"))
    reads = f"; a clock read costs {before:.0f} ns before, {attached:.0f} ns attached" if costs else ""
    return f"{here[0]['place']}, medians of {len(here[0]['rounds'])} rounds{reads}"
