"""The module that predicts the token after the next one, made of a model's own layers as transformers has them: it leaves those
tensors aside. How they are put together is as vLLM (`qwen3_5_mtp.py`, `deepseek_mtp.py`) and llama.cpp (`qwen35moe.cpp`,
`deepseek2.cpp`) have it: the norm of the embedding, then the norm of the model's normalised output, side by side through one
matrix; a decoder layer with full attention and experts; a norm; the model's own head.
"""
import copy

import torch
from torch import nn
from transformers.masking_utils import create_causal_mask


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


def shifted(hidden):
    """The output one position before each row; nothing before the first."""
    return torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
