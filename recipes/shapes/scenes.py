"""Pictures of shapes, drawn from random numbers, and questions about them with their answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from PIL import Image, ImageDraw

SIDE = 64
"""Width and height of a picture, in pixels."""
COLOURS = {"red": (214, 40, 40), "green": (40, 150, 70), "blue": (40, 80, 210), "orange": (245, 150, 20)}
LINE = (20, 20, 20)
KINDS = ("circle", "square", "triangle")
TASKS = ("count", "colour", "position", "box", "path")

WORDINGS = {
    "count": [
        "How many {0} shapes are there?",
        "Count the shapes that are {0}.",
        "What is the number of {0} shapes?",
        "The picture has how many {0} shapes?",
    ],
    "colour": [
        "What colour is the {0}?",
        "Name the colour of the {0}.",
        "Which colour does the {0} have?",
        "The {0} is of what colour?",
    ],
    "position": [
        "On which side of the {1} is the {0}?",
        "Where is the {0}, seen from the {1}?",
        "Tell on which side of the {1} the {0} lies.",
        "Which way is the {0} from the {1}?",
    ],
    "box": [
        "Give the box of the {0}.",
        "Where is the {0}? Answer with its box.",
        "Find the {0} and give its box.",
        "Draw a box around the {0}.",
    ],
    "path": [
        "Follow the line from the {0} to the {1}.",
        "Give the points of the line from the {0} to the {1}.",
        "Which way does the line from the {0} to the {1} run?",
        "A line leads from the {0} to the {1}. Give its points.",
    ],
}
"""Of each task: the question, then its rephrasings."""
SIDES = ("left", "right", "above", "below")


@dataclass(frozen=True)
class Shape:
    colour: str
    kind: str
    box: tuple[int, int, int, int]
    """x1, y1, x2, y2 in pixels."""

    @property
    def name(self) -> str:
        return f"{self.colour} {self.kind}"

    @property
    def centre(self) -> tuple[int, int]:
        x1, y1, x2, y2 = self.box
        return (x1 + x2) // 2, (y1 + y2) // 2

    @property
    def seen(self) -> str:
        """What a thought says of it: its name, its centre and its width."""
        return " {} x{} y{} w{}".format(self.name, *self.centre, self.width)

    @property
    def width(self) -> int:
        return self.box[2] - self.box[0]


@dataclass(frozen=True)
class Problem:
    """A picture and a question about it."""

    task: str
    shapes: tuple[Shape, ...]
    line: tuple[tuple[int, int], ...]
    """Points of the line in the picture, the middle one with a dot; none in most."""
    names: tuple[str, ...]
    """What the wordings speak of."""
    thought: str
    answer: Any
    """In the form that the task's reward takes."""
    choices: tuple[str, ...] | None = None

    @property
    def wordings(self) -> list[str]:
        """The question and its rephrasings."""
        return [wording.format(*self.names) for wording in WORDINGS[self.task]]

    @property
    def response(self) -> str:
        """A right response, from behind the opening tag of its thought."""
        space = " " if str(self.answer).isalpha() else ""
        return f"{self.thought}</think>{space}{self.answer}"

    @property
    def seen(self) -> list[tuple[tuple[int, int], str, tuple[int, int, int, int]]]:
        """Of the dot and of each shape: its centre, the words for it, and its box."""
        dots = [((x, y), f" dot x{x} y{y}", (x - 3, y - 3, x + 3, y + 3)) for x, y in self.line[1:2]]
        return dots + [(shape.centre, shape.seen, shape.box) for shape in self.shapes]

    def picture(self) -> Image.Image:
        image = Image.new("RGB", (SIDE, SIDE), (235, 235, 235))
        draw = ImageDraw.Draw(image)
        if self.line:
            draw.line(self.line, LINE, 2)
            x, y = self.line[1]
            draw.ellipse((x - 3, y - 3, x + 3, y + 3), LINE)
        for shape in self.shapes:
            x1, y1, x2, y2 = shape.box
            if shape.kind == "circle":
                draw.ellipse(shape.box, COLOURS[shape.colour])
            elif shape.kind == "square":
                draw.rectangle(shape.box, COLOURS[shape.colour])
            else:
                draw.polygon([(x1, y2), ((x1 + x2) // 2, y1), (x2, y2)], COLOURS[shape.colour])
        return image


def problem(random: Random, task: str | None = None) -> Problem:
    """Draw a task unless it is given, a picture for it and its answer."""
    return _MAKERS[task or random.choice(TASKS)](random)


def guess(p: Problem, random: Random) -> Problem:
    """The problem as one answers it in haste: without a look, as if it were another of its task."""
    return replace(p, thought=" a guess", answer=problem(random, p.task).answer)


def _shapes(random: Random, count: int) -> list[Shape]:
    """So many shapes that neither touch each other nor share both colour and kind."""
    names = random.sample([(colour, kind) for colour in COLOURS for kind in KINDS], count)
    return [Shape(*name, box) for name, box in zip(names, _boxes(random, count))]


def _boxes(random: Random, count: int) -> list[tuple[int, int, int, int]]:
    boxes: list[tuple[int, int, int, int]] = []
    while len(boxes) < count:
        size = random.randint(10, 16)
        x, y = random.randrange(1, SIDE - size), random.randrange(1, SIDE - size)
        if all(x > x2 + 1 or x + size < x1 - 1 or y > y2 + 1 or y + size < y1 - 1 for x1, y1, x2, y2 in boxes):
            boxes.append((x, y, x + size, y + size))
    return boxes


def _count(random: Random) -> Problem:
    colour = random.choice(list(COLOURS))
    others = [c for c in COLOURS if c != colour]
    count, rest = random.randint(0, 3), random.randint(1, 2)
    colours = [colour] * count + [random.choice(others) for _ in range(rest)]
    shapes = [Shape(c, random.choice(KINDS), box) for c, box in zip(colours, _boxes(random, count + rest))]
    found = sorted((shape for shape in shapes if shape.colour == colour), key=lambda shape: shape.centre)
    thought = ",".join(shape.seen for shape in found) or " none"
    return Problem("count", tuple(shapes), (), (colour,), thought, str(count))


def _colour(random: Random) -> Problem:
    kinds = random.sample(KINDS, 3)
    shapes = [Shape(random.choice(list(COLOURS)), kind, box) for kind, box in zip(kinds, _boxes(random, 3))]
    asked = shapes[0]
    return Problem("colour", tuple(shapes), (), (asked.kind,), asked.seen, asked.colour, tuple(COLOURS))


def _position(random: Random) -> Problem:
    while True:
        shapes = _shapes(random, 3)
        a, b = shapes[:2]
        dx, dy = (p - q for p, q in zip(a.centre, b.centre))
        if abs(abs(dx) - abs(dy)) >= 10:
            break
    side = SIDES[dx > 0] if abs(dx) > abs(dy) else SIDES[2 + (dy > 0)]
    return Problem("position", tuple(shapes), (), (a.name, b.name), f"{a.seen},{b.seen}", side, SIDES)


def _box(random: Random) -> Problem:
    shapes = _shapes(random, random.randint(2, 4))
    return Problem("box", tuple(shapes), (), (shapes[0].name,), shapes[0].seen, list(shapes[0].box))


def _path(random: Random) -> Problem:
    shapes = _shapes(random, 2)
    start, end = (shape.centre for shape in shapes)
    bend = random.randint(6, SIDE - 7), random.randint(6, SIDE - 7)
    names = tuple(shape.name for shape in shapes)
    thought = "{},{} dot x{} y{}".format(*(shape.seen for shape in shapes), *bend)
    return Problem("path", tuple(shapes), (start, bend, end), names, thought, [list(p) for p in (start, bend, end)])


_MAKERS = {"count": _count, "colour": _colour, "position": _position, "box": _box, "path": _path}
