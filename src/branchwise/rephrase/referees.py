"""Checks that ask a model: a judge, who compares both texts, and a solver, who answers both."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

from branchwise.config_rephrase import RephraseConfig
from branchwise.rephrase.checks import Candidate
from branchwise.rephrase.exchange import Exchange
from branchwise.rephrase.templates import load_prompt
from branchwise.rephrase.writer import Order, Settings

_VERDICT = re.compile(r"\b(YES|NO)\b", re.IGNORECASE)


class Referees:
    """The judge and the solver of a config; either may be absent."""

    def __init__(self, config: RephraseConfig, exchange: Exchange) -> None:
        self.config, self.exchange = config, exchange
        self.settings = Settings(config.temperature, config.top_p, config.max_tokens, config.seed, config.request)
        self.judge_prompt = load_prompt("judge", config.prompts)
        self.solve_prompt = load_prompt("solve", config.prompts)

    async def rejection(self, candidate: Candidate) -> str | None:
        """The reason against a rephrasing that passed the other checks.

        Raises:
            Stopped, GaveUp: as the exchange says.
        """
        return await self._judged(candidate) or await self._solved(candidate)

    async def _judged(self, c: Candidate) -> str | None:
        if self.config.judge is None:
            return None
        prompt = self.judge_prompt.fill(question=c.original, rephrasing=c.text)
        settings = replace(self.settings, temperature=0.0)
        reply = await self.exchange.ask(Order(self.config.judge, prompt, self.judge_prompt.version, 0, settings))
        verdicts = _VERDICT.findall((reply.text or "").rpartition("</think>")[2])
        if not verdicts:
            return f"judge: no verdict in {(reply.text or '')[-60:]!r}"
        return None if verdicts[-1].upper() == "YES" else "judge: not the same question"

    async def _solved(self, c: Candidate) -> str | None:
        """A solver that finds the reference answer from one text much oftener than from the other has met another
        question. With equal rates p and S samples the difference has the standard deviation √(2p(1−p)/S)."""
        if self.config.solver is None or c.answer is None:
            return None
        before, after = await asyncio.gather(self._rate(c.original, c.answer), self._rate(c.text, c.answer))
        if abs(before - after) <= self.config.solver_gap:
            return None
        return f"solver: the reference answer is found in {before:.0%} from the original and in {after:.0%} from this"

    async def _rate(self, question: str, answer: object) -> float:
        from branchwise.rewards.math import math

        assert self.config.solver is not None
        prompt = self.solve_prompt.fill(question=question)
        orders = [
            Order(self.config.solver, prompt, self.solve_prompt.version, sample, self.settings)
            for sample in range(self.config.solver_samples)
        ]
        replies = await asyncio.gather(*map(self.exchange.ask, orders))
        answers = [(reply.text or "").rpartition("</think>")[2] for reply in replies]
        return sum(reward or 0.0 for reward in math(answers, [answer] * len(answers))) / len(answers)
