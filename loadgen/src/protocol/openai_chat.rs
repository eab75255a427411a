//! Protocol `openai-chat`: `POST /v1/chat/completions`, SSE chunks closed by `[DONE]`. Grammar facts come from crate
//! `sse`, which the verdict reads too.

use evidence::record::{AnswerFacts, TokenSource, Tokens};
use serde_json::{Map, Value, json};
use sse::{BodyFacts, ChatStream, StreamFacts};

use super::{Call, Finished, Part, Protocol, StreamReader, ending_word, put_extra};

/// The protocol.
#[derive(Debug)]
pub struct OpenAiChat;

impl Protocol for OpenAiChat {
    fn name(&self) -> &'static str {
        "openai-chat"
    }

    fn path(&self) -> &'static str {
        "/v1/chat/completions"
    }

    fn key_header(&self) -> (&'static str, &'static str) {
        ("Authorization", "Bearer ")
    }

    fn body(&self, call: Call<'_>) -> Vec<u8> {
        let system = call.system.map(|text| json!({"role": "system", "content": text}));
        let said = call
            .messages
            .iter()
            .map(|message| json!({"role": message.role.word(), "content": message.content}));
        let messages: Vec<Value> = system.into_iter().chain(said).collect();
        let mut body = Map::new();
        body.insert("model".to_owned(), call.model.into());
        body.insert("messages".to_owned(), messages.into());
        body.insert("stream".to_owned(), call.stream.into());
        if call.stream {
            // Without it most servers count no tokens of a stream.
            body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        body.insert("max_tokens".to_owned(), call.max_tokens.into());
        put_extra(&mut body, call.extra);
        serde_json::to_vec(&body).expect("text, numbers and booleans serialise")
    }

    fn stream(&self) -> Box<dyn StreamReader> {
        Box::new(Reader(ChatStream::new()))
    }

    fn document(&self, body: &[u8], on_text: &mut dyn FnMut(&str)) -> Finished {
        let facts = BodyFacts::read(body, |document| document.content().for_each(|(_, text)| on_text(text)));
        of_document(facts)
    }
}

#[derive(Debug)]
struct Reader(ChatStream);

impl StreamReader for Reader {
    fn feed(&mut self, bytes: &[u8], on_part: &mut dyn FnMut(Part<'_>)) {
        self.0.feed(bytes, |what, payload| {
            on_part(Part::Event { reasoning: what.reasoning, output: what.content || what.tool_call });
            if let Some(payload) = payload.filter(|_| what.content) {
                payload.content().for_each(|(_, text)| on_part(Part::Text(text)));
            }
        });
    }

    fn events(&self) -> u64 {
        self.0.facts().events + self.0.facts().oversize_events
    }

    fn finish(&mut self) -> Finished {
        of_stream(self.0.finish())
    }
}

fn of_stream(facts: StreamFacts) -> Finished {
    let ending = facts.ending();
    let usage = facts.usage.unwrap_or_default();
    let tokens = match usage.completion_tokens {
        Some(completion) => {
            Some(Tokens { prompt: usage.prompt_tokens, completion, source: TokenSource::Usage })
        }
        None if facts.events == 0 => None,
        None => Some(Tokens {
            prompt: usage.prompt_tokens,
            completion: facts.content_events + facts.reasoning_events,
            source: TokenSource::Events,
        }),
    };
    let unfinished_bytes = facts.unfinished_bytes();
    let output_events = facts.content_events + facts.reasoning_events + facts.tool_call_events;
    let (error_message, error_code) =
        facts.error.map_or((None, None), |error| (Some(error.message.unwrap_or_default()), error.code));
    Finished {
        facts: AnswerFacts {
            ending: Some(ending_word(ending).to_owned()),
            events: facts.events,
            content_events: facts.content_events,
            reasoning_events: facts.reasoning_events,
            comments: facts.comments,
            done_count: facts.done_count,
            events_after_done: facts.events_after_done,
            unfinished_bytes,
            json_errors: facts.json_errors,
            utf8_errors: facts.utf8_errors,
            oversize_events: facts.oversize_events,
            shape_errors: facts.shape_errors
                + facts.not_objects
                + facts.choices_missing
                + facts.usage_negative
                + facts.usage_ill_typed,
            id_changed: facts.foreign_id.is_some(),
            error_message,
            error_code,
            finish_reasons: facts.finish_reasons,
            choices: u32::try_from(facts.choices.len()).unwrap_or(u32::MAX),
            ..AnswerFacts::default()
        },
        ending: Some(ending),
        tokens,
        output_events,
        id: facts.id,
        carries_nothing: output_events == 0,
        ..Finished::default()
    }
}

fn of_document(facts: BodyFacts) -> Finished {
    let tokens = facts.usage.and_then(|usage| {
        let completion = usage.completion_tokens?;
        Some(Tokens { prompt: usage.prompt_tokens, completion, source: TokenSource::Usage })
    });
    let missing = facts.is_object && facts.error.is_none() && (facts.choices_missing || facts.choices == 0);
    let shape_errors = [
        facts.shape_error,
        missing,
        facts.json && !facts.is_object,
        facts.choice_repeated,
        facts.usage_negative,
        facts.usage_ill_typed,
    ];
    let (error_message, error_code) =
        facts.error.map_or((None, None), |error| (Some(error.message.unwrap_or_default()), error.code));
    Finished {
        facts: AnswerFacts {
            content_events: facts.content_choices,
            reasoning_events: facts.reasoning_choices,
            json_errors: u64::from(!facts.json),
            utf8_errors: u64::from(!facts.valid_utf8),
            shape_errors: shape_errors.into_iter().map(u64::from).sum(),
            error_message,
            error_code,
            finish_reasons: facts.finish_reasons,
            choices: u32::try_from(facts.choices).unwrap_or(u32::MAX),
            json_object: Some(facts.is_object),
            ..AnswerFacts::default()
        },
        tokens,
        id: facts.id,
        carries_nothing: facts.content_choices + facts.reasoning_choices + facts.tool_call_choices == 0,
        ..Finished::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Message, Role};
    use super::*;

    #[test]
    fn a_body_has_all_turns_and_further_fields() {
        let messages = [
            Message { role: Role::User, content: "hi".to_owned() },
            Message { role: Role::Assistant, content: "hello".to_owned() },
        ];
        let extra = json!({"temperature": 0, "stream_options": null}).as_object().unwrap().clone();
        let call = Call {
            model: "m",
            system: Some("be short"),
            messages: &messages,
            max_tokens: 7,
            stream: true,
            extra: &extra,
        };
        let body: Value = serde_json::from_slice(&OpenAiChat.body(call)).unwrap();
        assert_eq!(
            body,
            json!({"model": "m", "messages": [{"role": "system", "content": "be short"},
                {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
                "stream": true, "max_tokens": 7, "temperature": 0})
        );
        let plain = OpenAiChat.body(Call { extra: &Map::new(), ..call });
        assert!(String::from_utf8(plain).unwrap().contains(r#""stream_options":{"include_usage":true}"#));
    }
}
