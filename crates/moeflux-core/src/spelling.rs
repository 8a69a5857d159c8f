//! Other names of tensors, for those of families.

/// Another name of a part of a tensor's canonical name, as transformers 5 calls it, say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spelling {
    from: &'static str,
    to: &'static str,
    at: At,
}

/// Where the other name stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Within,
    End,
}

impl Spelling {
    /// Names that begin with `from` begin with `to`.
    pub const fn start(from: &'static str, to: &'static str) -> Spelling {
        Spelling { from, to, at: At::Start }
    }

    /// Names that have `from` anywhere have `to` there.
    pub const fn within(from: &'static str, to: &'static str) -> Spelling {
        Spelling { from, to, at: At::Within }
    }

    /// Names that end with `from` end with `to`.
    pub const fn end(from: &'static str, to: &'static str) -> Spelling {
        Spelling { from, to, at: At::End }
    }

    /// The name that the family has for one of the other; `None` where it is not another.
    fn respelled(&self, name: &str) -> Option<String> {
        let Spelling { from, to, at } = *self;
        match at {
            At::Start => name.strip_prefix(from).map(|rest| format!("{to}{rest}")),
            At::End => name.strip_suffix(from).map(|start| format!("{start}{to}")),
            At::Within => name.contains(from).then(|| name.replacen(from, to, 1)),
        }
    }
}

/// The name that a family has for a tensor, by all other names of its parts in turn.
pub(crate) fn respelled(name: &str, spellings: &[Spelling]) -> String {
    spellings.iter().fold(name.to_owned(), |name, spelling| {
        let respelled = spelling.respelled(&name);
        respelled.unwrap_or(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_renamed_where_they_stand() {
        let all = [
            Spelling::start("blocks.", "layers."),
            Spelling::within(".mlp.", ".moe."),
            Spelling::end(".up_proj", ".up_proj.weight"),
        ];
        for (name, want) in [
            ("blocks.1.mlp.experts.up_proj", "layers.1.moe.experts.up_proj.weight"),
            ("blocks.1.mlp.experts.up_proj.weight", "layers.1.moe.experts.up_proj.weight"),
            ("norm.weight", "norm.weight"),
            ("a.blocks.1", "a.blocks.1"),
        ] {
            assert_eq!(respelled(name, &all), want);
        }
    }
}
