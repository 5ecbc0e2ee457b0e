//! The engine from outside: answers do not depend on how they were computed, and nothing is left over.

mod support;

use std::{path::PathBuf, sync::Arc};

use kvo_core::{BlockId, GroupIdx};
use kvo_mini_engine::{
    Engine, EngineError, EngineOptions, FinishReason, KvLayout, Model, NewRequest, RequestRefused, Sampling,
    SplitMix64, UnknownRequest,
};
use support::{TINY, WINDOW, alone, check_answer, check_empty, engine, options, tokens};

fn prompt(seed: u64, len: usize) -> Vec<u32> {
    tokens(&mut SplitMix64::new(seed), len)
}

#[test]
fn logits_are_the_same_however_a_prompt_is_cut_and_wherever_its_blocks_are() {
    for (model, name) in [(&TINY, "tiny"), (&WINDOW, "window")] {
        let request = NewRequest::new(prompt(5, 75), 20);
        let expected = alone(model, request.clone());
        for step_tokens in [1, 2, 7, 8, 9, 24, 64] {
            for layout in [KvLayout::LayerFirst, KvLayout::BlockFirst] {
                for (block_tokens, threads) in [(8, 1), (16, 3), (5, 1)] {
                    let block_seed = Some(u64::from(step_tokens));
                    let options =
                        EngineOptions { step_tokens, layout, block_tokens, threads, block_seed, ..options() };
                    let context = format!("{name} {options:?}");
                    let mut engine = engine(model, options);
                    engine.add(request.clone()).unwrap();
                    let outputs = engine.run().unwrap();
                    check_answer(&outputs[0], &expected, &context);
                    check_empty(&engine, &context);
                }
            }
        }
    }
}

#[test]
fn an_answer_is_the_same_token_by_token_and_as_a_prompt() {
    for model in [&TINY, &WINDOW] {
        let decoded = alone(model, NewRequest::new(prompt(6, 1), 60));
        let mut all = prompt(6, 1);
        for (nth, token) in decoded.tokens.iter().enumerate() {
            if nth % 7 == 0 {
                let prefilled = alone(model, NewRequest::new(all.clone(), 1));
                assert_eq!(prefilled.logits[0], decoded.logits[nth], "behind {} tokens", all.len());
            }
            all.push(*token);
        }
    }
}

#[test]
fn many_requests_at_once_answer_as_each_alone() {
    for model in [&TINY, &WINDOW] {
        let mut engine = engine(model, EngineOptions { num_blocks: 400, step_tokens: 50, ..options() });
        let requests: Vec<_> =
            (1..20).map(|nth| NewRequest::new(prompt(nth, 57 / usize::try_from(nth).unwrap()), 15)).collect();
        let ids: Vec<_> = requests.iter().map(|request| engine.add(request.clone()).unwrap()).collect();
        let outputs = engine.run().unwrap();
        for (id, request) in ids.iter().zip(&requests) {
            let output = outputs.iter().find(|output| output.request == *id).unwrap();
            check_answer(output, &alone(model, request.clone()), &format!("{id}"));
        }
        check_empty(&engine, "many");
    }
}

#[test]
fn a_prefix_is_found_on_the_device_but_for_the_last_token() {
    for (model, name) in [(&TINY, "tiny"), (&WINDOW, "window")] {
        let mut engine = engine(model, options());
        // 64 tokens are 8 whole blocks; of them the last token is computed, and so its block.
        let request = NewRequest::new(prompt(7, 64), 9);
        let first = engine.add(request.clone()).unwrap();
        let outputs = engine.run().unwrap();
        assert_eq!((outputs[0].request, outputs[0].hits.device_tokens), (first, 0));
        assert_eq!(outputs[0].hits.computed_tokens, 64 + 8);

        engine.add(request.clone()).unwrap();
        let again = engine.run().unwrap();
        assert_eq!((again[0].hits.device_tokens, again[0].hits.computed_tokens), (56, 8 + 8), "{name}");
        check_answer(&again[0], &outputs[0], name);

        // The answer is a prefix too: its block is found, where a longer prompt goes on from there.
        let longer = [request.prompt.clone(), outputs[0].tokens.clone(), vec![1, 2]].concat();
        let longer = NewRequest::new(longer, 3);
        engine.add(longer.clone()).unwrap();
        let found = engine.run().unwrap();
        assert_eq!(found[0].hits.device_tokens, 72, "{name}");
        check_answer(&found[0], &alone(model, longer), name);

        engine.add(NewRequest { salt: 1, ..request.clone() }).unwrap();
        assert_eq!(engine.run().unwrap()[0].hits.device_tokens, 0, "another salt");
        engine.reset();
        engine.add(request).unwrap();
        assert_eq!(engine.run().unwrap()[0].hits.device_tokens, 0, "after a reset");
        check_empty(&engine, name);
    }
}

#[test]
fn the_bytes_of_a_block_follow_from_its_name() {
    for model in [&TINY, &WINDOW] {
        let mut one = engine(model, EngineOptions { step_tokens: 200, ..options() });
        let layout = KvLayout::BlockFirst;
        let mut other =
            engine(model, EngineOptions { step_tokens: 7, layout, block_seed: Some(9), ..options() });
        let mut names = Vec::new();
        for engine in [&mut one, &mut other] {
            let id = engine.add(NewRequest::new(prompt(30, 70), 20)).unwrap();
            while let Some(request) = engine.request(id) {
                names = request.hashes.to_vec();
                engine.step().unwrap();
            }
        }
        let page = |engine: &Engine, layer: usize, plane: usize, block: BlockId| {
            let mut bytes = vec![0; usize::try_from(engine.caches().page_bytes()).unwrap()];
            let address = engine.caches().page_address(layer, plane, block);
            engine.device().memory().read(address, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(names.len(), 11);
        for (group, number) in one.caches().groups().iter().zip(0..) {
            for name in &names {
                let of = |engine: &Engine| engine.cached_block(GroupIdx(number), name).unwrap();
                for (&layer, plane) in group.layers.iter().flat_map(|layer| [(layer, 0), (layer, 1)]) {
                    let bytes = page(&one, layer, plane, of(&one));
                    assert!(bytes.iter().any(|byte| *byte != 0));
                    assert_eq!(bytes, page(&other, layer, plane, of(&other)), "layer {layer}");
                }
            }
        }
    }
}

#[test]
fn blocks_that_left_the_window_are_given_back() {
    // 200 tokens are 25 blocks, of which a window of 24 tokens needs 4 and a step of 8 tokens one more.
    let mut engine = engine(&WINDOW, EngineOptions { num_blocks: 30, step_tokens: 8, ..options() });
    let id = engine.add(NewRequest::new(prompt(8, 200), 8)).unwrap();
    let mut least = usize::MAX;
    while engine.num_requests() > 0 {
        let report = engine.step().unwrap();
        if report.finished.is_empty() {
            least = least.min(engine.blocks_available()[1]);
        }
        engine.assert_consistent();
    }
    assert!((30 - 5..30).contains(&least), "request {id} left {least} blocks of the window group");
    check_empty(&engine, "window");
}

#[test]
fn the_youngest_is_preempted_and_answers_as_if_it_had_not_been() {
    for (model, name) in [(&TINY, "tiny"), (&WINDOW, "window")] {
        let mut engine = engine(model, EngineOptions { num_blocks: 14, step_tokens: 32, ..options() });
        let requests: Vec<_> = (0..4).map(|nth| NewRequest::new(prompt(20 + nth, 20), 40)).collect();
        let ids: Vec<_> = requests.iter().map(|request| engine.add(request.clone()).unwrap()).collect();
        let outputs = engine.run().unwrap();
        let preemptions: Vec<u32> = ids
            .iter()
            .map(|id| outputs.iter().find(|output| output.request == *id).unwrap().hits.preemptions)
            .collect();
        assert!(preemptions[0] == 0 && preemptions.iter().sum::<u32>() > 0, "{name}: {preemptions:?}");
        for (id, request) in ids.iter().zip(&requests) {
            let output = outputs.iter().find(|output| output.request == *id).unwrap();
            check_answer(output, &alone(model, request.clone()), name);
        }
        check_empty(&engine, name);
    }
}

#[test]
fn seeded_samples_do_not_depend_on_company_or_preemption() {
    let sampled = |nth: u64| NewRequest {
        sampling: Sampling::Seeded { seed: nth, temperature: 0.8 },
        ..NewRequest::new(prompt(40, 12), 40)
    };
    let mut engine = engine(&TINY, EngineOptions { num_blocks: 14, step_tokens: 32, ..options() });
    let ids: Vec<_> = (0..4).map(|nth| engine.add(sampled(nth)).unwrap()).collect();
    let outputs = engine.run().unwrap();
    for (id, nth) in ids.iter().zip(0..) {
        let output = outputs.iter().find(|output| output.request == *id).unwrap();
        check_answer(output, &alone(&TINY, sampled(nth)), "sampled");
    }
    assert!(outputs.iter().any(|output| output.hits.preemptions > 0));
    assert_ne!(outputs[0].tokens, outputs[1].tokens);
}

#[test]
fn an_answer_ends_at_a_stop_token_or_with_an_abort() {
    let whole = alone(&TINY, NewRequest::new(prompt(50, 10), 30));
    let stop = whole.tokens[12];
    let stopped = alone(&TINY, NewRequest { stop: vec![stop], ..NewRequest::new(prompt(50, 10), 30) });
    let end = whole.tokens.iter().position(|token| *token == stop).unwrap();
    assert_eq!((stopped.reason, &stopped.tokens[..]), (FinishReason::Stop, &whole.tokens[..=end]));

    let mut engine = engine(&TINY, options());
    let id = engine.add(NewRequest::new(prompt(50, 10), 30)).unwrap();
    for _ in 0..5 {
        engine.step().unwrap();
    }
    let aborted = engine.abort(id).unwrap();
    assert_eq!((aborted.reason, aborted.tokens.len()), (FinishReason::Aborted, 5));
    check_answer(&aborted, &whole, "aborted");
    assert!(matches!(engine.abort(id), Err(EngineError::Unknown(unknown)) if unknown == UnknownRequest(id)));
    check_empty(&engine, "aborted");
}

#[test]
fn what_cannot_be_answered_is_refused() {
    let mut engine = engine(&TINY, EngineOptions { num_blocks: 4, ..options() });
    let mut check = |request: NewRequest, expected: RequestRefused| {
        assert!(matches!(engine.add(request), Err(EngineError::Refused(refused)) if refused == expected));
        assert!(engine.is_idle());
    };
    check(NewRequest::new(vec![], 1), RequestRefused::EmptyPrompt);
    check(NewRequest::new(vec![1], 0), RequestRefused::NothingAsked);
    check(
        NewRequest::new(vec![1, 256], 1),
        RequestRefused::UnknownToken { index: 1, token: 256, vocabulary: 256 },
    );
    check(NewRequest::new(vec![1; 30], 4), RequestRefused::TooLong { tokens: 33, needed: 5, num_blocks: 4 });
    let sampling = Sampling::Seeded { seed: 0, temperature: 0.0 };
    check(NewRequest { sampling, ..NewRequest::new(vec![1], 1) }, RequestRefused::Temperature);
    engine.add(NewRequest::new(vec![1; 30], 3)).unwrap();
    assert_eq!(engine.run().unwrap()[0].tokens.len(), 3);
}

/// Real weights, where there are some: `KVO_MINI_GGUF` is the path of SmolLM2-135M-Instruct as a GGUF file.
#[test]
fn a_real_model_knows_its_capitals_and_finds_its_prefixes() {
    let Some(path) = std::env::var_os("KVO_MINI_GGUF").map(PathBuf::from) else {
        eprintln!("SKIPPED: KVO_MINI_GGUF does not name a GGUF file of SmolLM2-135M-Instruct");
        return;
    };
    let (model, words) = Model::from_gguf(&path).unwrap();
    let words = words.unwrap();
    let prompt = words.tokens("A cat sat on a mat. The capital of Italy is Rome. The capital of France is");
    assert_eq!(
        words.text(&prompt),
        "A cat sat on a mat. The capital of Italy is Rome. The capital of France is"
    );
    let mut engine = engine(&Arc::new(model), EngineOptions { step_tokens: 9, ..options() });
    let request = NewRequest::new(prompt, 2);
    engine.add(request.clone()).unwrap();
    let first = engine.run().unwrap();
    assert!(words.text(&first[0].tokens).contains("Paris"), "{:?}", words.text(&first[0].tokens));
    engine.add(request).unwrap();
    let again = engine.run().unwrap();
    assert_eq!(again[0].hits.device_tokens, 16);
    check_answer(&again[0], &first[0], "from the device");
    check_empty(&engine, "real weights");
}

#[test]
fn a_seeded_model_answers_the_same_in_every_release() {
    let tokens = |model, text: &[u8]| {
        let prompt = text.iter().map(|&byte| u32::from(byte)).collect();
        alone(model, NewRequest::new(prompt, 8)).tokens
    };
    assert_eq!(tokens(&TINY, b"Once upon a time"), [138, 80, 80, 80, 80, 80, 80, 80]);
    assert_eq!(
        tokens(&WINDOW, b"Once upon a time there was a window of 24 tokens"),
        [22, 143, 99, 67, 46, 180, 99, 143]
    );
}

#[test]
fn a_device_that_fails_is_an_error_of_the_step() {
    let mut engine = engine(&TINY, options());
    engine.add(NewRequest::new(prompt(60, 30), 10)).unwrap();
    engine.step().unwrap();
    engine.device().fail(700);
    for _ in 0..2 {
        assert!(matches!(engine.step(), Err(EngineError::Compute(_))));
    }
}
