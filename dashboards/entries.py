"""The entries of a table as text, shared by its writers."""

from dashboards.numbers import DASH, fixed
from dashboards.table import Cell, Column, Table, TableRow


def format_value(value: float, column: Column) -> str:
    """`0.613`, `2.97×`, `41.2%`, `−0.012`: digits and unit of the column, a true minus sign."""
    scaled = 100 * value if column.unit == "%" else value
    return fixed(scaled, column.digits, signed=column.signed) + column.unit


def format_interval(low: float, high: float, column: Column) -> str:
    """`[2.51, 3.40]`, without the unit."""
    low_text, high_text = (format_value(limit, column).removesuffix(column.unit or "\0") for limit in (low, high))
    return f"[{low_text}, {high_text}]"


def value_and_interval(cell: Cell, column: Column) -> tuple[str, str]:
    """Value and interval as text; the interval is "" when there is none."""
    estimate = cell.estimate
    if estimate.value is None:
        return DASH, ""
    interval = format_interval(*estimate.interval, column) if estimate.interval else ""
    return format_value(estimate.value, column), interval


def lead_titles(table: Table) -> list[str]:
    """Titles of the columns before the numbers: target and prompts only where rows differ in them."""
    titles = []
    if len({row.target for row in table.rows}) > 1:
        titles.append("target")
    if len({row.prompts for row in table.rows}) > 1:
        titles.append("prompts")
    return [*titles, "method", "n"]


def lead_values(table: Table, row: TableRow) -> list[str]:
    """What a row says in these columns."""
    every = {"target": row.target, "prompts": row.prompts, "method": row.label, "n": str(row.n)}
    return [every[title] for title in lead_titles(table)]


def verdict_values(table: Table, row: TableRow) -> list[str]:
    """A word or two for each verdict of the table."""
    return [row.verdicts.get(verdict.key, "") or DASH for verdict in table.verdicts]


def head_n(column: Column, table: Table) -> str:
    """` (n=40)` where a column rests on another number of items than the rows say."""
    count = table.column_n(column.key)
    every = {str(row.n) for row in table.rows}
    return f" (n={count})" if count and {count} != every else ""
