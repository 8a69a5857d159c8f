//! `/v1/responses/{id}`: responses that were kept.

use std::sync::Arc;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::common::Common;
use crate::error::{ApiError, ApiResult};
use crate::kept::Owner;
use crate::offload::offload;
use crate::reply::{self, Reply};

/// Items of a page, where the query does not say it.
const PAGE: usize = 20;
/// Items of a page at most.
const LONGEST_PAGE: usize = 100;

/// What has become of a response.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct DeletedResponse {
    /// Its identifier.
    id: String,
    /// `response`.
    object: &'static str,
    /// Always true.
    deleted: bool,
}

/// The items of a response's request.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct InputItems {
    /// `list`.
    object: &'static str,
    /// The items.
    data: Vec<Value>,
    /// The identifier of the first of these.
    first_id: Option<String>,
    /// The identifier of the last of these.
    last_id: Option<String>,
    /// Whether there are more behind these.
    has_more: bool,
}

/// The query of a response.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ResponseQuery {
    stream: Option<String>,
}

/// The query of a response's items.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ItemsQuery {
    limit: Option<String>,
    order: Option<String>,
    after: Option<String>,
}

/// A query, as far as it can be read.
pub(crate) type Asked<T> = Result<Query<T>, QueryRejection>;

/// GET: the response as it was sent.
pub(crate) async fn get(
    common: Arc<Common>,
    owner: Owner,
    id: String,
    query: Asked<ResponseQuery>,
) -> ApiResult<Reply> {
    let query = read(query)?;
    if query.stream.is_some_and(|stream| stream == "true" || stream == "1") {
        let why = "a response that was kept comes as a whole: leave `stream` out";
        return Err(ApiError::not_supported("stream", why));
    }
    let response = offload(move || common.kept.response(&owner, &id)).await??;
    Ok(reply::json(StatusCode::OK, &response))
}

/// DELETE: takes it out of memory and off the drive.
pub(crate) async fn delete(common: Arc<Common>, owner: Owner, id: String) -> ApiResult<Reply> {
    let deleted = DeletedResponse { id: id.clone(), object: "response", deleted: true };
    offload(move || common.kept.delete(&owner, &id)).await??;
    Ok(reply::json(StatusCode::OK, &deleted))
}

/// The items of its request, a page at a time.
pub(crate) async fn input_items(
    common: Arc<Common>,
    owner: Owner,
    id: String,
    query: Asked<ItemsQuery>,
) -> ApiResult<Reply> {
    let page = Page::of(read(query)?)?;
    let items = offload(move || common.kept.input_items(&owner, &id)).await??;
    Ok(reply::json(StatusCode::OK, &page.of_items(items)?))
}

fn read<T>(query: Asked<T>) -> ApiResult<T> {
    query
        .map(|Query(query)| query)
        .map_err(|err| ApiError::new(StatusCode::BAD_REQUEST, err.body_text()))
}

/// Which items are wanted.
#[derive(Debug)]
struct Page {
    n_items: usize,
    is_descending: bool,
    after: Option<String>,
}

impl Page {
    fn of(query: ItemsQuery) -> ApiResult<Page> {
        let n_items = match query.limit.as_deref() {
            None => PAGE,
            Some(limit) => {
                let limit = limit.parse().ok().filter(|n| (1..=LONGEST_PAGE).contains(n));
                let problem = || format!("it must be an integer from 1 to {LONGEST_PAGE}");
                limit.ok_or_else(|| ApiError::field("limit", problem()))?
            }
        };
        let is_descending = match query.order.as_deref() {
            None | Some("desc") => true,
            Some("asc") => false,
            Some(_) => return Err(ApiError::field("order", "it must be asc or desc")),
        };
        Ok(Page { n_items, is_descending, after: query.after.filter(|id| !id.is_empty()) })
    }

    fn of_items(self, mut items: Vec<Value>) -> ApiResult<InputItems> {
        if self.is_descending {
            items.reverse();
        }
        let begin = match self.after {
            None => 0,
            Some(after) => {
                let place = items.iter().position(|item| item["id"] == *after);
                let missing = ApiError {
                    param: Some(String::from("after")),
                    ..ApiError::not_found("after: there is no item of this id")
                };
                place.ok_or(missing)? + 1
            }
        };
        let mut data = items.split_off(begin);
        let has_more = data.len() > self.n_items;
        data.truncate(self.n_items);
        let id = |item: Option<&Value>| item?["id"].as_str().map(str::to_owned);
        let (first_id, last_id) = (id(data.first()), id(data.last()));
        Ok(InputItems { object: "list", data, first_id, last_id, has_more })
    }
}
