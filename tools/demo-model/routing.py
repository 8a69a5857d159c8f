"""Records which experts a model chooses, and which ones simple predictors would have named.

A trace is a compressed numpy file of u8 arrays [layer, token, 4], each for `val` and `chat`:
  act    the experts chosen, for all layers
  out1   from layer 1: this layer's norm and router on the previous layer's output
  look1  from layer 1: the same on the residual before the previous layer's experts
  look2  from layer 2: the same from two layers before
"""
import numpy as np
import torch

TOP_K = 4
MAX_WINDOWS = 16


class Residuals:
    """What the layers of the last forward pass worked on."""

    def __init__(self, layers):
        n_layers = len(layers)
        self.before_experts, self.normed, self.outputs = [None] * n_layers, [None] * n_layers, [None] * n_layers
        self.is_open = True
        for idx, layer in enumerate(layers):
            layer.post_attention_layernorm.register_forward_hook(self.norm_hook(idx))
            layer.register_forward_hook(self.layer_hook(idx))

    def norm_hook(self, idx):
        def hook(_module, inputs, output):
            if self.is_open:
                self.before_experts[idx], self.normed[idx] = inputs[0], output

        return hook

    def layer_hook(self, idx):
        def hook(_module, _inputs, output):
            if self.is_open:
                self.outputs[idx] = output[0] if isinstance(output, tuple) else output

        return hook


def chosen(layer, normed):
    logits = normed.float()[0] @ layer.mlp.gate.weight.float().T
    return logits.topk(TOP_K, -1).indices.cpu().numpy()


@torch.no_grad()
def trace_window(model, residuals, tokens, device):
    """The arrays of one window, by name. The predictors run the norms again, which is not to be recorded."""
    layers = model.model.layers
    residuals.is_open = True
    with torch.autocast(device, dtype=torch.bfloat16):
        model(input_ids=torch.from_numpy(tokens.astype(np.int64)).to(device)[None], use_cache=False)
    residuals.is_open = False

    def predicted(idx, residual):
        return chosen(layers[idx], layers[idx].post_attention_layernorm(residual))

    n_layers = len(layers)
    return {
        "act": np.stack([chosen(layer, normed) for layer, normed in zip(layers, residuals.normed)]),
        "look1": np.stack([predicted(i, residuals.before_experts[i - 1]) for i in range(1, n_layers)]),
        "out1": np.stack([predicted(i, residuals.outputs[i - 1]) for i in range(1, n_layers)]),
        "look2": np.stack([predicted(i, residuals.before_experts[i - 2]) for i in range(2, n_layers)]),
    }


def shared(actual, predicted):
    """Mean share of the chosen experts that the prediction names."""
    k = actual.shape[-1]
    pairs = zip(actual.reshape(-1, k), predicted.reshape(-1, k))
    return np.mean([len(np.intersect1d(a, p)) / k for a, p in pairs])


def record(model, texts, length, device, path):
    """Traces the first windows of each text, saves them to `path`, and prints how good the predictors are."""
    residuals = Residuals(model.model.layers)
    traces = {}
    for name, tokens in texts.items():
        n_windows = min(MAX_WINDOWS, len(tokens) // length)
        windows = [trace_window(model, residuals, tokens[i * length : (i + 1) * length], device) for i in range(n_windows)]
        trace = {key: np.concatenate([it[key] for it in windows], 1).astype(np.uint8) for key in windows[0]}
        act = trace["act"]
        print(
            f"{name}: last token {shared(act[:, 1:], act[:, :-1]):.3f}, out1 {shared(act[1:], trace['out1']):.3f},"
            f" look1 {shared(act[1:], trace['look1']):.3f}, look2 {shared(act[2:], trace['look2']):.3f}"
        )
        traces.update({f"{name}_{key}": value for key, value in trace.items()})
    np.savez_compressed(path, **traces)
