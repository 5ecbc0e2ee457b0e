use super::*;

#[test]
fn a_short_soak_answers_right_and_leaves_no_request_pin_or_block() {
    let dir = tempfile::tempdir().unwrap();
    let options = EngineSoakOptions {
        duration: Duration::from_millis(800),
        cpu_chunks: 48,
        nvme_chunks: 128,
        policy: PolicyKind::Lru,
        seed: 1,
    };
    let mut num_samples = 0;
    let result = run_engine_soak(dir.path(), &options, &Interrupt::manual(), |_| num_samples += 1).unwrap();
    assert_eq!(num_samples, result.samples.len());
    assert!(result.problems.is_empty(), "{:?}", result.problems);
    let EngineCounts { answers, logits, wrong_answers, .. } = result.counts;
    assert!(answers > 0 && logits > 0 && wrong_answers == 0, "{:?}", result.counts);
}

#[test]
fn an_answer_with_another_bit_is_wrong() {
    let model = Arc::new(Model::seeded(ModelConfig::window(), 1).unwrap());
    let answers = Answers::of(&model, &engine_options(), 3).unwrap();
    let mut engine = Engine::new(model, engine_options(), kvo_mini_engine::NoOffload).unwrap();
    engine.add(answers.request(5).clone()).unwrap();
    let mut output = engine.run().unwrap().pop().unwrap();
    assert_eq!(answers.check(5, &output), Ok(()));
    assert!(answers.check(6, &output).is_err());
    let logit = output.logits.last_mut().unwrap().last_mut().unwrap();
    *logit = f32::from_bits(logit.to_bits() ^ 1);
    assert!(answers.check(5, &output).unwrap_err().contains("other logits"));
}
