"""The module that predicts the token after the next one, made of a model's own layers as transformers has them: it leaves those
tensors aside. How they are put together is as vLLM (`qwen3_5_mtp.py`, `deepseek_mtp.py`) and llama.cpp (`qwen35moe.cpp`,
`deepseek2.cpp`) have it: the norm of the embedding, then the norm of the model's normalised output, side by side through one
matrix; a decoder layer with full attention and experts; a norm; the model's own head.
"""
import copy

import torch
from torch import nn
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask


def is_like_it(layer):
    """Whether a layer has full attention, and experts."""
    return hasattr(layer, "self_attn") and hasattr(layer.mlp, "experts")


class Mtp(nn.Module):
    def __init__(self, model):
        super().__init__()
        trunk, width = model.model, model.config.hidden_size
        self.config = model.config
        norm = lambda: copy.deepcopy(trunk.norm)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = norm(), norm(), norm()
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = nn.ModuleList([copy.deepcopy([it for it in trunk.layers if is_like_it(it)][-1])])
        self.requires_grad_(True)

    def forward(self, embedded, hidden, rotary):
        """Row by row: the embedding of a token, and the model's normalised output (or this module's) one position before it.
        Gives what the head multiplies."""
        x = torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], dim=-1)
        x = self.fc(x)
        positions = torch.arange(x.shape[1], device=x.device)[None].expand(x.shape[0], -1)
        mask = create_causal_mask(
            config=self.config, inputs_embeds=x, attention_mask=None, past_key_values=None, position_ids=positions
        )
        has_sections = self.config.model_type.startswith("qwen3_5")
        x = self.layers[0](
            x,
            position_embeddings=rotary(x, positions[None].expand(3, -1, -1) if has_sections else positions),
            attention_mask=mask,
            position_ids=positions,
        )
        return self.norm(x)


class StreamsMtp(nn.Module):
    """The module where the residual has several streams, as mlx-vlm and llama.cpp have it: the norm of the model's streams, each of
    them through one matrix, and the embedding of the token, through another, added to all of them."""

    def __init__(self, model):
        super().__init__()
        trunk = model.model.language_model
        self.config = trunk.config
        width = self.config.hidden_size
        layer = copy.deepcopy([it for it in trunk.layers if is_like_it(it)][-1])
        self.pre_fc_norm_embedding = copy.deepcopy(layer.attn_hyper_connection.hc_norm)
        self.pre_fc_norm_embedding.weight = nn.Parameter(torch.zeros(width))
        self.pre_fc_norm_embedding.group_size = width
        self.pre_fc_norm_hidden = copy.deepcopy(layer.attn_hyper_connection.hc_norm)
        self.pre_fc_norm_hidden.group_size = width * self.config.hc_count
        self.fc_hidden, self.fc_embedding = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.layers = nn.ModuleList([layer])
        self.hyper_connection_mixer = copy.deepcopy(trunk.hyper_connection_mixer)
        self.requires_grad_(True)

    def forward(self, embedded, streams, rotary):
        """Row by row: the embedding of a token, and the model's streams (or this module's) one position before it. Gives this
        module's streams."""
        x = self.pre_fc_norm_hidden(streams).unflatten(-1, (self.config.hc_count, -1))
        x = self.fc_hidden(x) + self.fc_embedding(self.pre_fc_norm_embedding(embedded)).unsqueeze(-2)
        positions = torch.arange(x.shape[1], device=x.device)[None].expand(x.shape[0], -1)
        mask = create_causal_mask(
            config=self.config, inputs_embeds=embedded, attention_mask=None, past_key_values=None, position_ids=positions,
            allow_is_causal_skip=False,
        )
        return self.layers[0](x.flatten(-2), position_embeddings=rotary(embedded, positions[None].expand(3, -1, -1)), attention_mask=mask)


class HyperMtp(nn.Module):
    """The module of DeepSeek-V4, as SGLang (`deepseek_v4_nextn.py`) and Megatron have it: the norm of each of the model's streams by
    itself, each of them through one matrix, and the embedding of the token, through another, added to all of them; a decoder layer
    that attends to its window alone and never chooses experts by token; an end of its own; the model's own head."""

    def __init__(self, model):
        super().__init__()
        self.config = model.config
        width, trunk = self.config.hidden_size, model.model
        config = copy.deepcopy(self.config)
        config.layer_types, config.mlp_layer_types = ["sliding_attention"], ["moe"]
        norm = lambda: copy.deepcopy(trunk.norm)
        self.enorm, self.hnorm, self.norm = norm(), norm(), norm()
        self.e_proj, self.h_proj = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.layers = nn.ModuleList([type(trunk.layers[0])(config, 0)])
        self.hc_head = copy.deepcopy(trunk.hc_head)
        self.requires_grad_(True)

    def forward(self, embedded, streams, rotary):
        """Row by row: the embedding of a token, and the model's streams (or this module's) one position before it. Gives this
        module's streams."""
        x = self.h_proj(self.hnorm(streams)) + self.e_proj(self.enorm(embedded)).unsqueeze(-2)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        mask = create_sliding_window_causal_mask(
            config=self.config, inputs_embeds=embedded, attention_mask=None, cache=None, position_ids=positions
        )
        turns = {"main": rotary(embedded, position_ids=positions, layer_type="main")}
        return self.layers[0](x, position_embeddings=turns, position_ids=positions, attention_mask=mask)


def streams_of(model, tokens):
    """The streams that a model hands to its last mixer."""
    seen = []
    trunk = model.model
    mixer = trunk.hc_head if hasattr(trunk, "hc_head") else trunk.language_model.hyper_connection_mixer
    hook = mixer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(input_ids=tokens, use_cache=False)
    hook.remove()
    return seen[0]


def shifted(hidden):
    """The output one position before each row; nothing before the first."""
    return torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
