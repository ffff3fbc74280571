//! Requests and answers of the right form.

use fastpath_protocol::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_sentence_of_any_length_and_alphabet_arrives_as_far_as_there_is_room(sentence in "[a-zäß漢🕐]{1,400}") {
        let refusal = RequestRefusal::new(Code::Denied, sentence.clone());
        let bytes = Answer::refusing(1, &refusal).bytes();
        let arrived = Answer::parse(&bytes, Operation::Page).expect_err("a refusal");
        prop_assert_eq!(arrived.code, Code::Denied);
        prop_assert!(sentence.starts_with(&arrived.sentence));
        prop_assert!(arrived.sentence.len() == sentence.len() || arrived.sentence.len() > SENTENCE - 5);
    }
}

#[test]
fn a_request_of_another_version_is_told_which_one_is_spoken() {
    let request = Request {
        version: VERSION + 1,
        ..Request::new(Operation::Page)
    };
    let refusal = Request::parse(&request.bytes()).expect_err("another version");
    assert_eq!(refusal.code, Code::Version);
    // A request of that version may be longer.
    let mut longer = request.bytes();
    longer.extend([0; 64]);
    assert_eq!(Request::parse(&longer), Err(refusal));
}

#[test]
fn an_answer_to_another_question_is_not_taken() {
    let answer = Answer::new(Operation::Status as u32).bytes();
    assert!(Answer::parse(&answer, Operation::Status).is_ok());
    assert!(Answer::parse(&answer, Operation::Page).is_err());
}
