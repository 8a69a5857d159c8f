//! What jinja2 defines in every template: `joiner`, `cycler`, `dict`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use super::args::{Args, Given, invalid};

pub(super) fn add(env: &mut Environment<'_>) {
    env.add_function("joiner", joiner);
    env.add_function("cycler", cycler);
    env.add_function("dict", dict);
    env.add_function("namespace", namespace);
}

/// Gives its text on every call but the first.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    used: AtomicBool,
}

fn joiner(args: Given) -> Result<Value, Error> {
    let mut args = Args::of(args)?;
    let separator = args.take("sep")?.unwrap_or_else(|| Value::from(", "));
    args.finish()?;
    Ok(Value::from_object(Joiner { separator, used: AtomicBool::new(false) }))
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        Args::new(args)?.finish()?;
        let used = self.used.swap(true, Ordering::Relaxed);
        Ok(if used { self.separator.clone() } else { Value::from("") })
    }
}

/// Gives its items one after another, again and again.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

fn cycler(items: Rest<Value>) -> Result<Value, Error> {
    if items.is_empty() {
        return Err(invalid("at least one item has to be provided"));
    }
    Ok(Value::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) }))
}

impl Cycler {
    fn current(&self) -> Value {
        self.items[self.at.load(Ordering::Relaxed) % self.items.len()].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "current" => Some(self.current()),
            "items" => Some(Value::from(self.items.clone())),
            "pos" => Some(Value::from(self.at.load(Ordering::Relaxed) % self.items.len())),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::NonEnumerable
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        match method {
            "next" => {
                Args::new(args)?.finish()?;
                let current = self.current();
                self.at.fetch_add(1, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                Args::new(args)?.finish()?;
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// An object whose fields can be set, which begins with those that `dict` would have.
fn namespace(args: Given) -> Result<Value, Error> {
    let (fields,) = from_args(&[dict(args)?])?;
    minijinja::functions::namespace(Some(fields))
}

/// `dict(mapping or pairs, **fields)`
fn dict(args: Given) -> Result<Value, Error> {
    let mut args = Args::of(args)?;
    let mut fields: Vec<(Value, Value)> = Vec::new();
    if let Some(first) = args.positional() {
        let is_map = first.kind() == ValueKind::Map;
        for item in first.try_iter()?.checked() {
            let item = item?;
            if is_map {
                let value = first.get_item(&item)?;
                fields.push((item, value));
                continue;
            }
            let pair = item.try_iter()?.checked().collect::<Result<Vec<_>, Error>>()?;
            let [key, value] = pair.try_into().map_err(|_| invalid("dict takes pairs"))?;
            fields.push((key, value));
        }
    }
    if args.positional().is_some() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    fields.extend(args.keywords()?.into_iter().map(|(key, value)| (Value::from(key), value)));
    Ok(Value::from_pairs(fields))
}
