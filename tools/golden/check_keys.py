"""Compares the keys and defaults in crates/moeflux-model/src/families/*/keys.json with the config classes of
transformers, where it has one: every default, every second name, the rotary defaults, and that a class reads no key which the
table lacks. Exits with 1 and a line for each difference.

    A/bin/python tools/golden/check_keys.py
"""

import json
import re
import sys
from pathlib import Path

import transformers

FAMILIES = Path(__file__).parents[2] / "crates/moeflux-model/src/families"
TABLES = {path.parent.name: json.loads(path.read_text()) for path in sorted(FAMILIES.glob("*/keys.json"))}

# Keys of the classes that change no logits: training, generation, what tensors say, what the rotary part of the
# table covers, and what counts only with a key that the table refuses.
OTHER = {
    "attention_dropout", "bos_token_id", "chunk_size", "enable_moe_fp32_combine", "eos_token_id", "expand", "hidden_dropout", "initializer_range",
    "mamba_ssm_cache_dtype", "max_window_layers", "mlp_bias", "moe_shared_expert_overlap", "mtp_layers_block_type", "num_logits_to_keep", "num_mtp_layers",
    "num_nextn_predict_layers", "output_router_logits", "pad_token_id", "pretraining_tp", "rescale_prenorm_residual", "residual_in_fp32", "rope_parameters", "router_aux_loss_coef",
    "router_jitter_noise", "time_step_floor", "time_step_limit", "time_step_max", "time_step_min", "use_cache", "use_double_wide_mlp", "use_mamba_kernels", "vocab_size_per_layer_input",
}
# Fields that __post_init__ overwrites with another key.
DERIVED = {"deepseek_v2": {"head_dim"}, "deepseek_v32": {"head_dim"}, "glm5_next": {"head_dim"}, "glm_moe_dsa": {"head_dim"}, "qwen2_moe": {"sliding_window"}}
# Keys that the classes take as further arguments, with the defaults in their code.
ARGUMENTS = {
    "compress_ratios": None, "full_attention_interval": 4, "global_head_dim": 512, "index_skip_topk_offset": 2, "index_topk_freq": 1,
    "index_topk_pattern": None, "num_hash_layers": 3,
}


def default_of(entry):
    """The default that an entry of the table stands for."""
    if isinstance(entry, dict):
        return next(entry[key] for key in ("default", "fixed", "only") if key in entry)
    return entry


def check_rope(cls, have, rope):
    """Yields the differences of rotary defaults that are the same for all layers."""
    theta = have["rope_theta"]
    if theta != rope["theta"]:
        yield f"rope_theta: {theta} in {cls.__name__}, {rope['theta']} in the table"
    partial = have.get("partial_rotary_factor")
    if partial != (rope["partial"] if rope["partial"] not in ("unless default", 1.0) else None):
        yield f"partial_rotary_factor: {partial} in {cls.__name__}, {rope['partial']} in the table"
    parameters = {k: v for k, v in have.items() if k not in ("rope_theta", "partial_rotary_factor")}
    if parameters != (rope.get("parameters") or {"rope_type": "default"}):
        yield f"rope_parameters: {parameters} in {cls.__name__}"


def check(family, table):
    """Yields the differences of one family."""
    cls = getattr(transformers, table["class"])
    fields = {name: field.default for name, field in cls.__dataclass_fields__.items()}
    own = set(cls.__annotations__) & set(fields)
    known = set(table["keys"]) | set(table.get("aliases", {})) | OTHER | DERIVED.get(family, set())
    if "compressed_theta" in table["rope"]:
        known |= {"rope_theta", "partial_rotary_factor"}
    for key in sorted(own - known):
        yield f"{key}: {cls.__name__} has it, the table lacks it"
    for key, entry in table["keys"].items():
        want = default_of(entry)
        key = key if key in own else cls.attribute_map.get(key, key)
        if key in own:
            have = fields[key]
            if have != want:
                yield f"{key}: {have!r} in {cls.__name__}, {want!r} in the table"
        elif key in ARGUMENTS:
            if want != ARGUMENTS[key]:
                yield f"{key}: {ARGUMENTS[key]!r} in the code of {cls.__name__}, {want!r} in the table"
        elif not (isinstance(entry, dict) and ("only" in entry or "fixed" in entry)) and entry is not None:
            yield f"{key}: {cls.__name__} has no such key"
        nullable = any(word in str(cls.__annotations__.get(key, "None")) for word in ("None", "Optional"))
        takes_null = entry is None or (isinstance(entry, dict) and "default" not in entry) or \
            (isinstance(entry, dict) and "null" in entry)
        if takes_null and not nullable and not isinstance(entry, dict):
            yield f"{key}: {cls.__name__} refuses null, the table takes it"
    mapped = {k: v for k, v in cls.attribute_map.items()}
    for alias, key in mapped.items():
        names = {alias, key}
        listed = any(names == {a, k} for a, k in table.get("aliases", {}).items())
        if not listed and not names & {"num_mtp_layers"}:
            yield f"{alias}: a second name of {key} in {cls.__name__}"
    rope, own_rope = table["rope"], getattr(cls(), "rope_parameters", None)
    if own_rope is None:                                             # a family without rotation
        pass
    elif "compressed_theta" in rope:
        yield from check_rope(cls, own_rope["main"], rope)
        compressed = own_rope["main"] | {"rope_theta": table["keys"][rope["compressed_theta"]]}
        if own_rope["compress"] != compressed:
            yield f"rope_parameters: {own_rope['compress']} in {cls.__name__}"
    elif rope.get("by_layer_type"):
        if own_rope != rope["parameters"]:
            yield f"rope_parameters: {own_rope} in {cls.__name__}"
    else:
        yield from check_rope(cls, own_rope, rope)
    code = Path(sys.modules[cls.__module__].__file__)
    modelling = code.with_name(code.name.replace("configuration_", "modeling_")).read_text()
    reads_partial = '"partial_rotary_factor"' in modelling
    if not rope.get("by_layer_type") and reads_partial != (rope["partial"] != "unless default"):
        yield f"partial_rotary_factor: read by the model: {reads_partial}"
    for key, entry in table["keys"].items():
        is_ignored = isinstance(entry, dict) and "fixed" in entry
        if is_ignored and re.search(rf"config\.{key}\b", modelling):
            yield f"{key}: the model reads it, the table says that it is fixed"


def main():
    """Prints the differences of all families."""
    differences = [f"{family}: {what}" for family, table in TABLES.items()
                   if table["class"] for what in check(family, table)]
    print("\n".join(differences) or f"the same as transformers {transformers.__version__}")
    sys.exit(bool(differences))


main()
