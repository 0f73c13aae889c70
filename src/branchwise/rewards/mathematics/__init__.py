"""Mathematical answers: finding them in a text (`extraction`), and telling which are equal (`equality`)."""


def words(text: str) -> tuple[str, ...]:
    """Of a table written as text."""
    return tuple(text.split())
