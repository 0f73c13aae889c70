import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from branchwise.policy import head as module
from branchwise.policy.head import token_logprobs

S, H, V = 7, 5, 11


@pytest.fixture
def small_tiles(monkeypatch):
    """Several blocks of the vocabulary, the last one ragged."""
    monkeypatch.setattr(module, "BLOCK", 4)


def inputs(dtype=torch.float64, bias=True):
    torch.manual_seed(0)
    head = nn.Linear(H, V, bias=bias, dtype=dtype)
    hidden_SH = torch.randn(S, H, dtype=dtype, requires_grad=True)
    return hidden_SH, head, torch.tensor([0, 3, 4, 10, 10, 7, 8])


def plain(hidden_SH, head, target_S, temperature=1.0, scale=1.0, softcap=None):
    """The definition, with the whole matrix of logits."""
    logits_SV = scale * head(hidden_SH)
    if softcap is not None:
        logits_SV = softcap * torch.tanh(logits_SV / softcap)
    logp_SV = torch.log_softmax(logits_SV / temperature, -1)
    return logp_SV[torch.arange(len(target_S)), target_S], -(logp_SV.exp() * logp_SV).sum(-1)


def gradients(outputs, hidden_SH, head):
    torch.manual_seed(1)
    loss = sum((torch.randn_like(output) * output).sum() for output in outputs)
    return torch.autograd.grad(loss, [hidden_SH, *head.parameters()])


def test_b13_temperature_divides_logits():
    """Case B13: logits [2, 0] at temperature 0.5; neither the untempered log-probs nor log-probs divided by T."""
    head = nn.Linear(1, 2, bias=False)
    head.weight.data = torch.tensor([[2.0], [0.0]])
    logp_S, entropy_S = token_logprobs(torch.ones(2, 1), head, torch.tensor([0, 1]), temperature=0.5, entropy=True)
    torch.testing.assert_close(logp_S, torch.tensor([-0.01815, -4.01815]), atol=1e-5, rtol=0)
    # −0.98201·log 0.98201 − 0.01799·log 0.01799
    torch.testing.assert_close(entropy_S, torch.tensor([0.09009, 0.09009]), atol=1e-5, rtol=0)


SETTINGS = [{}, {"temperature": 0.7, "scale": 1.5}, {"temperature": 0.7, "scale": 1.5, "softcap": 2.0}]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_definition(small_tiles, settings, bias):
    hidden_SH, head, target_S = inputs(bias=bias)
    expected = plain(hidden_SH, head, target_S, **settings)
    actual = token_logprobs(hidden_SH, head, target_S, chunk=3, entropy=True, **settings)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        gradients(actual, hidden_SH, head), gradients(expected, hidden_SH, head), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("entropy", [True, False])
def test_gradcheck(small_tiles, settings, entropy):
    hidden_SH, head, target_S = inputs()

    def outputs(hidden_SH, *_parameters):
        logp_S, entropy_S = token_logprobs(hidden_SH, head, target_S, chunk=4, entropy=entropy, **settings)
        return (logp_S, entropy_S) if entropy else logp_S

    assert torch.autograd.gradcheck(outputs, (hidden_SH, head.weight, head.bias))


@pytest.mark.parametrize("settings", SETTINGS)
def test_any_other_module_takes_the_exact_chunked_way(small_tiles, settings):
    """A head that is no plain Linear, such as one with LoRA, is called as it is."""

    class Adapted(nn.Linear):
        def forward(self, hidden_SH):
            return super().forward(hidden_SH) + hidden_SH.sum(-1, keepdim=True) * self.weight[:, 0]

    hidden_SH, plain_head, target_S = inputs()
    head = Adapted(H, V, dtype=torch.float64)
    head.load_state_dict(plain_head.state_dict())
    expected = plain(hidden_SH, head, target_S, **settings)
    actual = token_logprobs(hidden_SH, head, target_S, chunk=3, entropy=True, **settings)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        gradients(actual, hidden_SH, head), gradients(expected, hidden_SH, head), rtol=1e-10, atol=1e-12
    )


def test_chunk_and_block_change_nothing(monkeypatch):
    hidden_SH, head, target_S = inputs()
    whole = token_logprobs(hidden_SH, head, target_S, entropy=True)
    whole_gradients = gradients(whole, hidden_SH, head)
    for chunk, block in [(1, 1), (2, 3), (7, 11), (100, 5)]:
        monkeypatch.setattr(module, "BLOCK", block)
        parts = token_logprobs(hidden_SH, head, target_S, chunk=chunk, entropy=True)
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients(parts, hidden_SH, head), whole_gradients, rtol=1e-12, atol=1e-12)


def test_rows_without_gradient_are_skipped_exactly(small_tiles):
    hidden_SH, head, target_S = inputs()
    weight_S = torch.tensor([0.0, 1.0, 0.0, 0.0, -2.0, 0.0, 0.0], dtype=torch.float64)
    parameters = [hidden_SH, *head.parameters()]
    actual = torch.autograd.grad((weight_S * token_logprobs(hidden_SH, head, target_S)[0]).sum(), parameters)
    expected = torch.autograd.grad((weight_S * plain(hidden_SH, head, target_S)[0]).sum(), parameters)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert actual[0][0].abs().max() == 0


def test_large_logits_stay_finite(small_tiles):
    """The largest logit may stand in any block of the vocabulary."""
    head = nn.Linear(1, V, bias=False)
    for peak in (0, 5, V - 1):
        head.weight.data = torch.full((V, 1), -3e4)
        head.weight.data[peak] = 3e4
        logp_S, entropy_S = token_logprobs(torch.ones(1, 1), head, torch.tensor([peak]), entropy=True)
        assert logp_S.item() == 0 and entropy_S.item() == 0


class Watch(TorchDispatchMode):
    """Elements of the largest tensor that any operator returns, and the types of what is multiplied."""

    def __init__(self):
        super().__init__()
        self.largest, self.products = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            self.products |= {arg.dtype for arg in args}
        return result


def test_autocast_takes_products_in_bfloat16_and_sums_in_float32():
    """Against float64 on the same bfloat16 logits: only sums differ, so float32 precision is left."""
    torch.manual_seed(0)
    head = nn.Linear(64, 5000, bias=False)
    hidden_SH, target_S = torch.randn(20, 64, requires_grad=True), torch.randint(5000, (20,))
    with torch.autocast("cpu", torch.bfloat16):
        logits_SV = head(hidden_SH)
        with Watch() as watch:
            actual = token_logprobs(hidden_SH, head, target_S, entropy=True)
    with watch:
        actual_gradients = gradients(actual, hidden_SH, head)
    assert watch.products == {torch.bfloat16}
    assert logits_SV.dtype == torch.bfloat16 and actual[0].dtype == actual[1].dtype == torch.float32
    logp_SV = torch.log_softmax(logits_SV.double(), -1)
    expected = logp_SV.gather(1, target_S[:, None])[:, 0], -(logp_SV.exp() * logp_SV).sum(-1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5, check_dtype=False)
    exact = gradients(plain(hidden_SH, head, target_S), hidden_SH, head)
    for rough, fine in zip(actual_gradients, exact):
        assert rough.dtype == torch.float32
        assert (rough - fine).norm() / fine.norm() < 1e-2


def test_a_frozen_head_gets_no_gradient(small_tiles):
    hidden_SH, head, target_S = inputs()
    head.requires_grad_(False)
    with Watch() as watch:
        token_logprobs(hidden_SH, head, target_S, chunk=4)[0].sum().backward()
    (expected,) = torch.autograd.grad(plain(hidden_SH, head, target_S)[0].sum(), hidden_SH)
    torch.testing.assert_close(hidden_SH.grad, expected, rtol=1e-12, atol=1e-12)
    assert head.weight.grad is None
    assert watch.largest < V * H  # nor is one computed


def test_logits_exist_only_by_tile(small_tiles):
    S, V = 40, 60
    head = nn.Linear(2, V)
    hidden_SH, target_S = torch.randn(S, 2, requires_grad=True), torch.randint(V, (S,))
    with Watch() as watch:
        logp_S, entropy_S = token_logprobs(hidden_SH, head, target_S, chunk=10, softcap=30.0, entropy=True)
        (logp_S + entropy_S).sum().backward()
    assert watch.largest == V * 2  # the weight and its gradient; a tile has 10 × 4, all logits 40 × 60
