//! Pictures in messages: where they stand, and where a template takes them.
//!
//! A picture is a part `{"type": "image"}` of a content. Some templates write pictures of users only: they
//! drop those of other roles, or print the whole list. Such pictures move to the user's next turn, or to a
//! turn of their own before the answer to them, and a note stands in their place. A message's pictures move
//! alike in every conversation that begins with it, so that prompts keep their beginnings.

use serde_json::{Value, json};

use super::history::turn_with_call;
use super::message::Message;

/// What stands where a picture was that moved.
const MOVED: &str = "[the image is in the next message of the user]";

/// Texts around a picture that is tried.
const AROUND: [&str; 2] = ["Before37", "Behind59"];

/// Roles whose pictures a template writes where they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PictureRoles {
    user: bool,
    system: bool,
    assistant: bool,
    tool: bool,
}

/// Whether a part of a content is a picture.
fn is_picture(part: &Value) -> bool {
    part["type"] == "image"
}

fn parts(message: &Message) -> &[Value] {
    message.content.as_ref().and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Pictures of messages.
pub(super) fn count_all(messages: &[Message]) -> usize {
    messages.iter().map(Message::n_pictures).sum()
}

/// The first text of a message.
pub(super) fn first_text(message: &Message) -> &str {
    match &message.content {
        Some(Value::String(text)) => text,
        _ => parts(message).iter().find_map(|part| part["text"].as_str()).unwrap_or_default(),
    }
}

impl PictureRoles {
    /// Tries conversations: `render` gives what the template makes of messages, `None` where it refuses
    /// them.
    pub(super) fn find(
        placeholder: &str,
        render: impl Fn(&[Message]) -> Option<String>,
    ) -> PictureRoles {
        let [before, behind] = AROUND;
        let shown = |role: &str| Message {
            content: Some(json!([text(before), {"type": "image"}, text(behind)])),
            ..Message::new(role, "")
        };
        let shows = |messages: &[Message]| {
            let Some(written) = render(messages) else { return false };
            let Some((_, rest)) = written.split_once(before) else { return false };
            let Some((between, rest)) = rest.split_once(behind) else { return false };
            between.matches(placeholder).count() == 1 && !rest.contains(placeholder)
        };
        let question = Message::new("user", "Question93");
        let user = shows(&[shown("user")]);
        let system = shows(&[shown("system"), question.clone()]);
        let assistant = shows(&[question.clone(), shown("assistant"), question.clone()]);
        let [asked, call, _] =
            turn_with_call(&question, "functions.probe:0", &json!({"text": "1"}), &Value::Null);
        let result =
            Message { tool_call_id: Some(Value::from("functions.probe:0")), ..shown("tool") };
        let tool = shows(&[asked, call, result]);
        PictureRoles { user, system, assistant, tool }
    }

    /// Whether it writes any.
    pub(super) fn takes_any(self) -> bool {
        self.user
    }

    fn takes(self, role: &str) -> bool {
        match role {
            "system" | "developer" => self.system,
            "assistant" => self.assistant,
            "tool" => self.tool,
            _ => self.user,
        }
    }

    /// A conversation whose pictures stand where the template takes them, in the order that they had. They
    /// stay where they are if it takes none.
    pub(super) fn apply(self, messages: Vec<Message>) -> Vec<Message> {
        if !self.takes_any() || count_all(&messages) == 0 {
            return messages;
        }
        let mut placed = Vec::with_capacity(messages.len());
        let mut moved = 0;
        for mut message in messages {
            let n_pictures = message.n_pictures();
            if n_pictures > 0 && !self.takes(&message.role) {
                // An answer stays behind what it answers.
                if message.role == "assistant" {
                    placed.extend(turn_of(&mut moved));
                }
                moved += n_pictures;
                message.content = Some(Value::from(without_pictures(&message)));
                placed.push(message);
                continue;
            }
            if message.role == "user" {
                put_first(std::mem::take(&mut moved), &mut message);
            } else if message.role == "assistant" || n_pictures > 0 {
                placed.extend(turn_of(&mut moved));
            }
            placed.push(message);
        }
        placed.extend(turn_of(&mut moved));
        placed
    }
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn pictures(n: usize) -> impl Iterator<Item = Value> {
    std::iter::repeat_with(|| json!({"type": "image"})).take(n)
}

/// A turn of the user with pictures that moved, where there are any.
fn turn_of(moved: &mut usize) -> Option<Message> {
    let n = std::mem::take(moved);
    let content = Some(pictures(n).collect());
    (n > 0).then(|| Message { content, ..Message::new("user", "") })
}

fn put_first(n: usize, message: &mut Message) {
    if n == 0 {
        return;
    }
    let own = match message.content.take() {
        Some(Value::Array(parts)) => parts,
        Some(Value::String(said)) if !said.is_empty() => vec![text(&said)],
        _ => Vec::new(),
    };
    message.content = Some(pictures(n).chain(own).collect());
}

/// The text of a message, with notes in place of pictures.
fn without_pictures(message: &Message) -> String {
    let mut said = String::new();
    let mut follows_note = false;
    for part in parts(message) {
        let text = if is_picture(part) { MOVED } else { part["text"].as_str().unwrap_or_default() };
        let is_apart = follows_note || is_picture(part);
        if is_apart && !said.is_empty() && !said.ends_with('\n') && !text.starts_with('\n') {
            said.push('\n');
        }
        said.push_str(text);
        follows_note = is_picture(part);
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: PictureRoles =
        PictureRoles { user: true, system: false, assistant: false, tool: false };

    fn messages(all: &[(&str, Value)]) -> Vec<Message> {
        let message = |(role, content): &(&str, Value)| Message {
            content: Some(content.clone()),
            ..Message::new(*role, "")
        };
        all.iter().map(message).collect()
    }

    fn image() -> Value {
        json!({"type": "image"})
    }

    #[test]
    fn pictures_move_to_the_users_next_turn_and_a_note_says_so() {
        let result = ("tool", json!([text("Seen:"), image(), text("Done.")]));
        let noted = ("tool", json!(format!("Seen:\n{MOVED}\nDone.")));
        let moved = USERS.apply(messages(&[result.clone(), ("user", json!("What is it?"))]));
        let asked = ("user", json!([image(), text("What is it?")]));
        assert_eq!(moved, messages(&[noted.clone(), asked]));
        // Or to one that is added, before the answer or at the end.
        let alone = ("user", json!([image(), image()]));
        let answer = ("assistant", json!("A cat."));
        let moved = USERS.apply(messages(&[result.clone(), result.clone(), answer.clone()]));
        assert_eq!(moved, messages(&[noted.clone(), noted.clone(), alone.clone(), answer]));
        let moved = USERS.apply(messages(&[result.clone(), result]));
        assert_eq!(moved, messages(&[noted.clone(), noted, alone]));
    }

    #[test]
    fn pictures_keep_their_order() {
        let tools = PictureRoles { tool: true, ..USERS };
        let given = [("system", json!([image()])), ("tool", json!([image(), text("Shown.")]))];
        let moved = tools.apply(messages(&given));
        let first = ("user", json!([image()]));
        assert_eq!(moved, messages(&[("system", json!(MOVED)), first, given[1].clone()]));
        let given =
            messages(&[("user", json!([text("See"), image()])), ("tool", json!([image()]))]);
        assert_eq!(tools.apply(given.clone()), given);
        let plain = messages(&[("tool", json!([text("Shown.")]))]);
        assert_eq!(USERS.apply(plain.clone()), plain, "lists without pictures stay");
        assert_eq!(PictureRoles::default().apply(given.clone()), given, "no role takes any");
    }

    #[test]
    fn a_template_shows_by_trial_whose_pictures_it_writes() {
        let found = |write: &dyn Fn(&Message) -> Option<String>| {
            PictureRoles::find("<P>", |messages: &[Message]| messages.iter().map(write).collect())
        };
        let listed = |message: &Message| -> String {
            let part = |part: &Value| part["text"].as_str().unwrap_or("<P>").to_owned();
            parts(message).iter().map(part).collect()
        };
        let all = PictureRoles { user: true, system: true, assistant: true, tool: true };
        assert_eq!(found(&|message| Some(listed(message))), all);
        let of_users = |message: &Message| match message.role.as_str() {
            "user" => Some(listed(message)),
            "tool" => message.content.as_ref().map(Value::to_string),
            "system" => (message.n_pictures() == 0).then(String::new),
            _ => Some(String::new()),
        };
        assert_eq!(found(&of_users), USERS);
        assert!(!found(&|message| message.content.as_ref().map(Value::to_string)).takes_any());
    }
}
