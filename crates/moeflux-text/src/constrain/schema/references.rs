//! References of a schema, resolved against the whole of it.

use std::collections::{HashMap, HashSet, VecDeque};

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// Different places that the references of one schema may lead to.
const MAX_TARGETS: usize = 1024;

/// A place that references lead to.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Its name in `$defs` of the result.
    pub(super) name: String,
    /// Where it is in the original, as a JSON pointer.
    pub(super) pointer: String,
}

/// What references of a schema lead to.
pub(super) struct References<'a> {
    root: &'a Value,
    /// Pointers of subschemas by anchor and by id, read when one is asked for.
    named: Option<Named>,
    /// Names by pointer.
    names: HashMap<String, String>,
    taken: HashSet<String>,
    /// Targets that were not rewritten yet.
    waiting: VecDeque<Target>,
}

#[derive(Default)]
struct Named {
    anchors: HashMap<String, String>,
    ids: HashMap<String, String>,
}

impl<'a> References<'a> {
    pub(super) fn new(root: &'a Value) -> References<'a> {
        References {
            root,
            named: None,
            names: HashMap::new(),
            taken: HashSet::new(),
            waiting: VecDeque::new(),
        }
    }

    /// The name in `$defs` of what a reference leads to.
    ///
    /// # Errors
    /// Says why there is none.
    pub(super) fn name_of(&mut self, reference: &str) -> Result<String, String> {
        let pointer = self.resolve(reference)?;
        if let Some(name) = self.names.get(&pointer) {
            return Ok(name.clone());
        }
        if self.names.len() == MAX_TARGETS {
            return Err(format!("the schema has more than {MAX_TARGETS} different references"));
        }
        let name = self.free_name(&pointer);
        self.names.insert(pointer.clone(), name.clone());
        self.waiting.push_back(Target { name: name.clone(), pointer });
        Ok(name)
    }

    /// The next target that was asked for, and its schema.
    pub(super) fn next_target(&mut self) -> Option<(Target, &'a Value)> {
        let target = self.waiting.pop_front()?;
        let schema = self.root.pointer(&target.pointer)?;
        Some((target, schema))
    }

    /// The JSON pointer of what a reference leads to.
    fn resolve(&mut self, reference: &str) -> Result<String, String> {
        let shown: String = reference.chars().take(100).collect();
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let base = match document {
            "" => String::new(),
            id => {
                let known = self.named().ids.get(id).cloned();
                known.ok_or_else(|| format!("{shown:?} refers to another document"))?
            }
        };
        let decoded = percent_decode_str(fragment).decode_utf8_lossy().into_owned();
        let pointer = match decoded.as_str() {
            "" | "/" => Some(base),
            text if text.starts_with('/') => {
                // Some generators write pointers with a percent sign as it is.
                let ways = [format!("{base}{text}"), format!("{base}{fragment}")];
                ways.into_iter().find(|pointer| self.root.pointer(pointer).is_some())
            }
            anchor => self.named().anchors.get(anchor).cloned(),
        };
        let pointer = pointer.ok_or_else(|| format!("{shown:?} leads nowhere"))?;
        match self.root.pointer(&pointer) {
            Some(Value::Object(_) | Value::Bool(_)) => Ok(pointer),
            Some(_) => Err(format!("{shown:?} leads to what is no schema")),
            None => Err(format!("{shown:?} leads nowhere")),
        }
    }

    fn named(&mut self) -> &Named {
        let root = self.root;
        self.named.get_or_insert_with(|| Named::of(root))
    }

    /// A name of letters, digits and underscores for a place.
    fn free_name(&mut self, pointer: &str) -> String {
        const MAX_CHARS: usize = 40;
        let last = pointer.rsplit('/').next().unwrap_or_default();
        let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let mut name: String = last.chars().map(word).take(MAX_CHARS).collect();
        if name.is_empty() {
            name = String::from("root");
        }
        let plain = name.clone();
        let mut n = 1;
        while !self.taken.insert(name.clone()) {
            n += 1;
            name = format!("{plain}_{n}");
        }
        name
    }
}

impl Named {
    /// Anchors and ids of all objects; the first of a name counts.
    fn of(root: &Value) -> Named {
        let mut named = Named::default();
        let mut todo = vec![(root, String::new())];
        while let Some((value, pointer)) = todo.pop() {
            match value {
                Value::Object(fields) => {
                    for key in ["$anchor", "$dynamicAnchor"] {
                        if let Some(name) = fields.get(key).and_then(Value::as_str) {
                            named.anchors.entry(name.to_owned()).or_insert(pointer.clone());
                        }
                    }
                    for key in ["$id", "id"] {
                        if let Some(id) = fields.get(key).and_then(Value::as_str) {
                            let (document, fragment) = id.split_once('#').unwrap_or((id, ""));
                            let (all, name) = match document {
                                // Before draft 2019-09 an id may be an anchor.
                                "" => (&mut named.anchors, fragment),
                                id => (&mut named.ids, id),
                            };
                            all.entry(name.to_owned()).or_insert(pointer.clone());
                        }
                    }
                    for (key, inner) in fields {
                        let key = key.replace('~', "~0").replace('/', "~1");
                        todo.push((inner, format!("{pointer}/{key}")));
                    }
                }
                Value::Array(items) => {
                    let items = items.iter().enumerate();
                    todo.extend(items.map(|(i, inner)| (inner, format!("{pointer}/{i}"))));
                }
                _ => {}
            }
        }
        named
    }
}
