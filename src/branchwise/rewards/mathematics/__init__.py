"""Mathematical answers: finding them in a text (`extraction`), and telling which are equal (`equality`)."""
