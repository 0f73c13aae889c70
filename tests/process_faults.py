"""What goes wrong on the second of two processes in the third step, whatever the first does."""

import math
import os
import signal

import torch


def loss_of_rank_1():
    from branchwise.policy.policy import Policy
    from branchwise.train import trainer

    logprobs, update, calls = Policy.logprobs, trainer.update, [0]

    def counted(*arguments, **settings):
        calls[0] += 1
        return update(*arguments, **settings)

    def spoilt(policy, pack, entropy=False):
        logp_S, entropy_S = logprobs(policy, pack, entropy)
        return logp_S * (math.nan if calls[0] == 3 and os.environ["RANK"] == "1" else 1.0), entropy_S

    Policy.logprobs, trainer.update = spoilt, counted


def sampler_of_rank_1():
    from branchwise.train.trainer import Trainer

    collect = Trainer.collect

    def spoilt(trainer, step, clock):
        if step == 3 and os.environ["RANK"] == "1":
            with torch.no_grad():
                next(trainer.policy.model.parameters()).fill_(math.nan)
        return collect(trainer, step, clock)

    Trainer.collect = spoilt


def signal_and_error():
    """In the third step the first process gets SIGTERM, while the second meets an error."""
    from branchwise.train.trainer import Trainer

    collect = Trainer.collect

    def spoilt(trainer, step, clock):
        if step == 3 and os.environ["RANK"] == "1":
            raise RuntimeError("the questions ran away")
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return collect(trainer, step, clock)

    Trainer.collect = spoilt
