"""From a file, a dataset or a generated task to questions, their prompts' token ids, and the order of drawing."""

from branchwise.data.load import DataError, Rows, load_rows
from branchwise.data.prompt import Renderer
from branchwise.data.questions import fitting, load_questions, questions
from branchwise.data.report import Report
from branchwise.data.stream import Stream

__all__ = ["DataError", "Renderer", "Report", "Rows", "Stream", "fitting", "load_questions", "load_rows", "questions"]
