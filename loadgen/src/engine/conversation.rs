//! Conversations: what has been said, and the bytes of the next turn.

use std::sync::Arc;

use super::spare::Spare;
use crate::connection::request::HeadTemplate;
use crate::profile::Resolved;
use crate::profile::content::{self, Draws, Place};
use crate::profile::resolve::{ScenarioPlan, Text};
use crate::protocol::{Call, Message, Role};

/// Bodies that are kept to be changed in place.
const TEMPLATES_MAX: usize = 4096;
/// Stands for the marker in a kept body; JSON writes it as it is.
const BLANK: u8 = b'#';

/// One conversation.
#[derive(Debug)]
pub struct Conversation {
    /// Place of its scenario.
    pub scenario: usize,
    /// Conversation id.
    pub uuid: String,
    /// Where it stands in the plan.
    pub place: Place,
    /// Turn that is due or runs, from 0.
    pub turn: u32,
    /// How many it will have.
    pub turns: u32,
    /// User of a closed loop.
    pub user: Option<usize>,
    /// Stage in which the turn was planned.
    pub stage: usize,
    /// Planned instant of the turn.
    pub planned_us: u64,
    /// The in-flight bound held it back.
    pub delayed: bool,
    messages: Vec<Message>,
}

impl Conversation {
    /// A conversation in which nothing was said.
    #[must_use]
    pub fn new(plan: &Resolved, scenario: usize, place: Place, user: Option<usize>) -> Self {
        let given = &plan.scenarios[scenario];
        let draws = Draws { seed: plan.seed, scenario: &given.name, place };
        let (least, most) = given.turns;
        let more = if most > least { draws.below("turns", 0, u64::from(most - least) + 1) } else { 0 };
        Self {
            scenario,
            uuid: draws.uuid(),
            place,
            turn: 0,
            turns: least + u32::try_from(more).unwrap_or_default(),
            user,
            stage: 0,
            planned_us: 0,
            delayed: false,
            messages: Vec::new(),
        }
    }

    /// Draws of this conversation.
    #[must_use]
    pub fn draws<'a>(&self, plan: &'a Resolved) -> Draws<'a> {
        Draws { seed: plan.seed, scenario: &plan.scenarios[self.scenario].name, place: self.place }
    }

    /// The model has answered; the next turn is due.
    pub fn answered(&mut self, content: String) {
        self.messages.push(Message { role: Role::Assistant, content });
        self.turn += 1;
        self.delayed = false;
    }
}

/// A body whose marker is changed in place.
#[derive(Debug)]
struct Template {
    body: Vec<u8>,
    marker_at: Option<usize>,
}

/// Writes requests of all scenarios.
#[derive(Debug)]
pub struct Writer {
    plan: Arc<Resolved>,
    heads: Vec<HeadTemplate>,
    /// `][run:<salt>] `, new for every run, so that no cache answers for an earlier one.
    salt: String,
    /// By scenario and number of text.
    templates: Vec<Vec<Option<Template>>>,
    body: Vec<u8>,
}

impl Writer {
    /// A writer; `heads` are by scenario.
    #[must_use]
    pub fn new(plan: Arc<Resolved>, heads: Vec<HeadTemplate>, salt: &str) -> Self {
        let templates = plan.scenarios.iter().map(|_| Vec::new()).collect();
        Self { plan, heads, salt: format!("][run:{salt}] "), templates, body: Vec::new() }
    }

    /// The marker in its three parts, of which none is copied before it has its place.
    fn marker<'a>(&'a self, uuid: &'a str) -> [&'a str; 3] {
        if self.plan.marker { ["[", uuid, &self.salt] } else { [""; 3] }
    }

    /// The request of the turn that is due, and the size of its body.
    pub fn write(&mut self, conversation: &mut Conversation, spare: &mut Spare) -> (Vec<u8>, u64) {
        let plan = Arc::clone(&self.plan);
        let scenario = &plan.scenarios[conversation.scenario];
        let mut request = spare.take();
        let known = (conversation.turns == 1).then(|| number(&scenario.text, conversation, &plan)).flatten();
        match known.filter(|number| *number < TEMPLATES_MAX) {
            Some(number) => self.splice(scenario, conversation, number),
            None => {
                let (text, _) = content::text(&scenario.text, conversation.draws(&plan), conversation.turn);
                let first = conversation.messages.is_empty();
                let marker = self.marker(&conversation.uuid).concat();
                let content = if first { marker + &text } else { text };
                conversation.messages.push(Message { role: Role::User, content });
                self.body = body(scenario, &conversation.messages);
            }
        }
        let id = self.plan.id_header.as_deref().map(|header| (header, conversation.uuid.as_str()));
        self.heads[conversation.scenario].write_as(id, &self.body, &mut request);
        (request, self.body.len() as u64)
    }

    /// The body of a text that comes again and again: the kept one with this marker in it.
    fn splice(&mut self, scenario: &ScenarioPlan, conversation: &Conversation, number: usize) {
        let marker_len: usize = self.marker(&conversation.uuid).iter().map(|part| part.len()).sum();
        let kept = &mut self.templates[conversation.scenario];
        if kept.len() <= number {
            kept.resize_with(number + 1, || None);
        }
        if kept[number].is_none() {
            let (text, _) = content::text(&scenario.text, conversation.draws(&self.plan), conversation.turn);
            let blank = String::from_utf8(vec![BLANK; marker_len]).unwrap_or_default();
            let body = body(scenario, &[Message { role: Role::User, content: format!("{blank}{text}") }]);
            let marker_at = if marker_len == 0 {
                None
            } else {
                body.windows(blank.len()).position(|window| window == blank.as_bytes())
            };
            kept[number] = Some(Template { body, marker_at });
        }
        let mut filled = std::mem::take(&mut self.body);
        filled.clear();
        if let Some(template) = &self.templates[conversation.scenario][number] {
            filled.extend_from_slice(&template.body);
            if let Some(mut at) = template.marker_at {
                for part in self.marker(&conversation.uuid) {
                    filled[at..at + part.len()].copy_from_slice(part.as_bytes());
                    at += part.len();
                }
            }
        }
        self.body = filled;
    }
}

/// Number of the text of the first turn, when it is one of a few.
fn number(text: &Text, conversation: &Conversation, plan: &Resolved) -> Option<usize> {
    match text {
        Text::Pool(prompts) => {
            let drawn = conversation.draws(plan).below("prompt", 0, prompts.len() as u64);
            usize::try_from(drawn).ok()
        }
        Text::Scripted(_) | Text::Sized { same: true, .. } => Some(0),
        Text::Sized { same: false, .. } | Text::Dataset(_) => None,
    }
}

fn body(scenario: &ScenarioPlan, messages: &[Message]) -> Vec<u8> {
    scenario.protocol.body(Call {
        model: &scenario.model,
        system: scenario.system.as_deref(),
        messages,
        max_tokens: scenario.max_tokens,
        stream: scenario.stream,
        extra: &scenario.body,
    })
}
