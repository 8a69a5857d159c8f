// Records in IndexedDB. Where the browser keeps none, they stay in memory until the tab is closed.

const NAME = "moeflux";
const KEYS = { chats: "id", messages: "id", drafts: "chat" };

let database = null;
let opening = null;
/** Records that could not be written, by store and key; a record that is `null` was removed. */
const unwritten = { chats: new Map(), messages: new Map(), drafts: new Map() };
let onProblem = () => {};

/** Calls `listener` with a sentence when records are not kept. */
export function watchProblems(listener) {
  onProblem = listener;
}

function openDatabase() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      for (const [store, keyPath] of Object.entries(KEYS)) request.result.createObjectStore(store, { keyPath });
      request.transaction.objectStore("messages").createIndex("chat", "chat");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab holds an old version of the data"));
    // Some private modes neither open nor refuse.
    setTimeout(() => reject(new Error("the browser's storage does not answer")), 5000);
  });
}

/** The database, or `null` where there is none. */
async function connect() {
  if (database) return database;
  opening ??= openDatabase().then(opened => {
    database = opened;
    const forget = () => {
      database = null;
      opening = null;
    };
    opened.onclose = forget;
    opened.onversionchange = () => {
      opened.close();
      forget();
    };
    return opened;
  }).catch(error => {
    onProblem(`This browser keeps no conversations here (${reason(error)}). They last until the tab is closed.`);
    return null;
  });
  return opening;
}

function reason(error) {
  if (error?.name === "QuotaExceededError") return "its storage is full: delete or export some";
  return error?.message || error?.name || "private mode";
}

/** Runs `work` in a transaction; its result is there when the transaction has been written. */
async function transact(stores, mode, work) {
  const opened = await connect();
  if (!opened) throw new Error("no storage");
  return new Promise((resolve, reject) => {
    const transaction = opened.transaction(stores, mode);
    let result;
    transaction.oncomplete = () => resolve(result);
    transaction.onabort = () => reject(transaction.error ?? new Error("aborted"));
    transaction.onerror = () => reject(transaction.error);
    work(transaction, value => { result = value; });
  });
}

async function read(store, start) {
  try {
    return await transact([store], "readonly", (transaction, done) => {
      const request = start(transaction.objectStore(store));
      request.onsuccess = () => done(request.result);
    });
  } catch {
    return null;
  }
}

/** What is stored, with what could not be stored. */
function merged(store, records, filter = () => true) {
  if (!unwritten[store].size) return records;
  const kept = records.filter(record => !unwritten[store].has(record[KEYS[store]]));
  return [...kept, ...Array.from(unwritten[store].values()).filter(record => record && filter(record))];
}

export async function all(store) {
  return merged(store, await read(store, records => records.getAll()) ?? []);
}

export async function messagesOf(chat) {
  const records = await read("messages", messages => messages.index("chat").getAll(chat)) ?? [];
  return merged("messages", records, record => record.chat === chat);
}

export async function get(store, key) {
  if (unwritten[store].has(key)) return unwritten[store].get(key);
  return await read(store, records => records.get(key)) ?? null;
}

/** Writes records and removes others, all or none: `{ put: [[store, record]], remove: [[store, key]] }`. */
export async function write({ put = [], remove = [] }) {
  const stores = [...new Set([...put, ...remove].map(([store]) => store))];
  if (!stores.length) return true;
  try {
    await transact(stores, "readwrite", transaction => {
      for (const [store, record] of put) transaction.objectStore(store).put(record);
      for (const [store, key] of remove) transaction.objectStore(store).delete(key);
    });
    for (const [store, record] of put) unwritten[store].delete(record[KEYS[store]]);
    for (const [store, key] of remove) unwritten[store].delete(key);
    return true;
  } catch (error) {
    for (const [store, record] of put) unwritten[store].set(record[KEYS[store]], structuredClone(record));
    for (const [store, key] of remove) unwritten[store].set(key, null);
    if (database) onProblem(`This could not be kept (${reason(error)}).`);
    return false;
  }
}

/** Changes one record by what is stored now, so that another tab's changes to other fields stay. */
export async function update(store, key, change) {
  let changed = null;
  try {
    await transact([store], "readwrite", transaction => {
      const records = transaction.objectStore(store);
      const request = records.get(key);
      request.onsuccess = () => {
        if (!request.result) return;
        changed = { ...request.result, ...change };
        records.put(changed);
      };
    });
  } catch {
    changed = null;
  }
  if (changed) return changed;
  const record = unwritten[store].get(key);
  if (!record) return null;
  unwritten[store].set(key, { ...record, ...change });
  return unwritten[store].get(key);
}

/** Calls `visit` with every message, without having all of them in memory. */
export async function eachMessage(visit) {
  try {
    await transact(["messages"], "readonly", transaction => {
      const request = transaction.objectStore("messages").openCursor();
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return;
        if (!unwritten.messages.has(cursor.value.id)) visit(cursor.value);
        cursor.continue();
      };
    });
  } catch {
    // Only what is in memory.
  }
  for (const message of unwritten.messages.values()) if (message) visit(message);
}
