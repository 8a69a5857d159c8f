//! Responses that later requests refer to: `previous_response_id` and references to items.
//!
//! A response is found by its id, and an item by its own, which begins with that of its response. What one
//! key's requests made is not there for those of another.

mod drive;
mod input;
mod key;
mod owner;
mod record;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use self::drive::Drive;
pub(crate) use self::key::item_id;
use self::key::{Key, digits_of};
pub(crate) use self::owner::Owner;
use self::record::MAX_RECORD;
pub(crate) use self::record::Record;
use crate::error::{ApiError, ApiResult};
use crate::log::LogFormat;

/// Bytes of all records in memory.
const MAX_BYTES: usize = 64 << 20;
/// Records in memory.
const MAX_RECORDS: usize = 4096;
/// Bytes that one request may refer to.
const MAX_REFERRED: usize = 16 << 20;
/// Responses of one conversation.
const MAX_TURNS: usize = 1024;
/// The number in the id of the first item of a request, behind those of items of answers.
const FIRST_INPUT: usize = 0x10_0000;

/// Responses that were kept, the least recently used of which leave.
#[derive(Debug)]
pub(crate) struct KeptResponses {
    held: Mutex<Held>,
    drive: Option<Drive>,
}

#[derive(Debug, Default)]
struct Held {
    records: HashMap<Key, Entry>,
    n_bytes: usize,
    /// Grows with each use.
    clock: u64,
    /// Records that were deleted so far.
    n_deleted: u64,
}

#[derive(Debug)]
struct Entry {
    record: Arc<Record>,
    last_use: u64,
}

impl KeptResponses {
    /// In memory, and below a folder where there is one.
    pub(crate) fn new(dir: Option<&Path>, log: LogFormat) -> KeptResponses {
        let drive = dir.map(|dir| Drive::open(dir, log));
        KeptResponses { held: Mutex::default(), drive }
    }

    /// Keeps a response.
    pub(crate) fn put(&self, id: &str, record: Record) {
        let Some(key) = Key::of(&record.owner, id) else { return };
        if record.n_bytes() > MAX_RECORD {
            return;
        }
        let record = Arc::new(record);
        if let Some(drive) = &self.drive {
            drive.write(&key, &record);
        }
        self.held().put(key, record);
    }

    /// What finds the items that one request refers to.
    pub(crate) fn resolver<'a>(&'a self, owner: &'a Owner) -> Resolver<'a> {
        Resolver { kept: self, owner, outputs: HashMap::new(), n_bytes: 0 }
    }

    /// The record of a response by its id, or by that of one of its items.
    fn record(&self, owner: &Owner, id: &str) -> Option<Arc<Record>> {
        let key = Key::of(owner, id)?;
        let n_deleted = {
            let mut held = self.held();
            if let Some(record) = held.get(&key) {
                return Some(record);
            }
            held.n_deleted
        };
        let record = Arc::new(self.drive.as_ref()?.read(&key)?);
        let mut held = self.held();
        // Meanwhile it may have been deleted, after which memory must not have it.
        if held.n_deleted == n_deleted {
            held.put(key, Arc::clone(&record));
        }
        Some(record)
    }

    /// A response as it was sent.
    ///
    /// # Errors
    /// 404 where the owner has none of this id.
    pub(crate) fn response(&self, owner: &Owner, id: &str) -> ApiResult<Value> {
        Ok(self.own(owner, id)?.response())
    }

    /// The items of a response's request, each with an id. References are resolved where that is possible.
    ///
    /// # Errors
    /// 404 where the owner has no response of this id.
    pub(crate) fn input_items(&self, owner: &Owner, id: &str) -> ApiResult<Vec<Value>> {
        let record = self.own(owner, id)?;
        let mut resolver = self.resolver(owner);
        let items = record.input().into_iter().enumerate().map(|(i, item)| {
            let item = resolver.resolved(item.clone()).unwrap_or(item);
            input::described(item, &item_id("msg_", id, FIRST_INPUT + i))
        });
        Ok(items.collect())
    }

    /// Deletes a response from memory and from the drive, which is waited for.
    ///
    /// # Errors
    /// 404 where the owner has none of this id; 500 where its file cannot be removed.
    pub(crate) fn delete(&self, owner: &Owner, id: &str) -> ApiResult<()> {
        self.own(owner, id)?;
        let Some(key) = Key::of(owner, id) else { return Err(not_kept(id)) };
        if let Some(drive) = &self.drive {
            drive.remove(&key).map_err(|err| {
                ApiError::internal(format!("the response's file cannot be removed: {err}"))
            })?;
        }
        self.held().delete(&key);
        Ok(())
    }

    /// The record of a response by its own id alone.
    fn own(&self, owner: &Owner, id: &str) -> ApiResult<Arc<Record>> {
        let is_own = id.starts_with("resp_") && digits_of(id).map(str::len) == Some(id.len() - 5);
        let record = is_own.then(|| self.record(owner, id)).flatten();
        record.ok_or_else(|| not_kept(id))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A record is whole wherever a panic came from.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn get(&mut self, key: &Key) -> Option<Arc<Record>> {
        self.clock += 1;
        let entry = self.records.get_mut(key)?;
        entry.last_use = self.clock;
        Some(Arc::clone(&entry.record))
    }

    fn delete(&mut self, key: &Key) {
        self.n_deleted += 1;
        if let Some(entry) = self.records.remove(key) {
            self.n_bytes -= entry.record.n_bytes();
        }
    }

    fn put(&mut self, key: Key, record: Arc<Record>) {
        self.clock += 1;
        self.n_bytes += record.n_bytes();
        let entry = Entry { record, last_use: self.clock };
        if let Some(before) = self.records.insert(key, entry) {
            self.n_bytes -= before.record.n_bytes();
        }
        while self.n_bytes > MAX_BYTES || self.records.len() > MAX_RECORDS {
            let oldest = self.records.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { return };
            if let Some(entry) = self.records.remove(&oldest) {
                self.n_bytes -= entry.record.n_bytes();
            }
        }
    }
}

/// Finds the items that one request refers to, up to 16 MiB of them.
#[derive(Debug)]
pub(crate) struct Resolver<'a> {
    kept: &'a KeptResponses,
    owner: &'a Owner,
    /// Items of responses, by the digits of these.
    outputs: HashMap<String, Vec<Value>>,
    n_bytes: usize,
}

impl Resolver<'_> {
    /// The items of all turns up to a response, its own input and output included.
    ///
    /// # Errors
    /// 404 where the response, or one that it goes on from, is not there; 400 where they are too much.
    pub(crate) fn conversation(&mut self, id: &str) -> ApiResult<Vec<Value>> {
        const FIELD: &str = "previous_response_id";
        let mut turns = Vec::new();
        let mut next = Some(id.to_owned());
        while let Some(id) = next {
            let record = self.kept.record(self.owner, &id).ok_or_else(|| no_response(&id))?;
            self.take(record.n_bytes(), FIELD)?;
            if turns.len() == MAX_TURNS {
                let problem = format!("it goes on from more than {MAX_TURNS} responses");
                return Err(ApiError::field(FIELD, problem));
            }
            next = record.previous.clone();
            turns.push(record);
        }
        let mut items = Vec::new();
        for record in turns.iter().rev() {
            for item in record.input() {
                items.push(self.resolved(item)?);
            }
            items.extend(record.output());
        }
        Ok(items)
    }

    /// An item of an input, or the one that it refers to.
    ///
    /// # Errors
    /// 404 where that is not there; 400 where all that the request refers to is too much.
    pub(crate) fn resolved(&mut self, item: Value) -> ApiResult<Value> {
        let Some(id) = reference(&item) else { return Ok(item) };
        let missing = || no_item(id);
        let digits = digits_of(id).ok_or_else(missing)?;
        if !self.outputs.contains_key(digits) {
            let record = self.kept.record(self.owner, id).ok_or_else(missing)?;
            self.take(record.n_bytes(), "input")?;
            self.outputs.insert(digits.to_owned(), record.output());
        }
        let output = self.outputs.get(digits).into_iter().flatten();
        let found = output.clone().find(|item| item["id"] == *id).cloned().ok_or_else(missing)?;
        self.take(found.to_string().len(), "input")?;
        Ok(found)
    }

    /// Counts bytes of what is referred to.
    fn take(&mut self, n_bytes: usize, field: &str) -> ApiResult<()> {
        self.n_bytes = self.n_bytes.saturating_add(n_bytes);
        if self.n_bytes <= MAX_REFERRED {
            return Ok(());
        }
        let most = MAX_REFERRED >> 20;
        let problem = format!("it refers to more than {most} MiB: send what is needed as items");
        Err(ApiError::field(field, problem))
    }
}

/// Whether a request refers to earlier ones.
pub(crate) fn refers(body: &Value) -> bool {
    let items = body.get("input").and_then(Value::as_array).into_iter().flatten();
    let has_previous = body.get("previous_response_id").is_some_and(Value::is_string);
    has_previous || items.into_iter().any(|item| reference(item).is_some())
}

/// What an item refers to, if it does nothing else.
fn reference(item: &Value) -> Option<&str> {
    let is_bare =
        |fields: &Map<String, Value>| fields.keys().all(|key| key == "id" || key == "type");
    let is_reference = match item.get("type") {
        None | Some(Value::Null) => item.as_object().is_some_and(is_bare),
        Some(kind) => kind == "item_reference",
    };
    item.get("id").and_then(Value::as_str).filter(|_| is_reference)
}

fn shown(id: &str) -> String {
    id.chars().filter(|c| !c.is_control()).take(100).collect()
}

fn not_kept(id: &str) -> ApiError {
    ApiError::not_found(format!("Response with id '{}' not found.", shown(id)))
}

fn no_response(id: &str) -> ApiError {
    let message = format!("Previous response with id '{}' not found.", shown(id));
    ApiError {
        param: Some(String::from("previous_response_id")),
        code: Some("previous_response_not_found"),
        ..ApiError::not_found(message)
    }
}

fn no_item(id: &str) -> ApiError {
    let message = format!(
        "Item with id '{}' not found. Items are not persisted when `store` is set to false. Try again \
         with `store` set to true, or remove this item from your input.",
        shown(id)
    );
    ApiError { param: Some(String::from("input")), ..ApiError::not_found(message) }
}

#[cfg(test)]
mod tests;
