//! A fault costs the chunk that it happened to.

use std::io::ErrorKind;

use super::*;

#[test]
fn other_bytes_than_were_written_are_noticed() {
    over_each(|kind| {
        let mut rig = Rig::new(kind, 1, 4);
        let sum = rig.write(0, 1, tenant(1));
        let fault = rig.run(2, 1, tenant(1), Action::Read { checksum: sum ^ 1 }).unwrap_err();
        let Fault::Checksum { written, found } = fault else { panic!("{fault}") };
        assert_eq!((written, found), (sum ^ 1, sum));
        let fault = rig.run(2, 1, tenant(2), Action::Read { checksum: sum }).unwrap_err();
        assert!(matches!(fault, Fault::Checksum { .. }), "another tenant: {fault}");
        rig.run(2, 1, tenant(1), Action::Read { checksum: sum }).unwrap();
        rig.stop();
    });
}

#[test]
fn the_end_of_a_file_that_was_cut_is_an_error() {
    over_each(|kind| {
        let mut rig = Rig::new(kind, 1, 4);
        let sum = rig.write(0, 3, tenant(1));
        let offset = rig.geometry.place(3).offset;
        for bytes in [offset + CHUNK_BYTES as u64 - 1, offset + 4096, offset + 100, offset, 0] {
            rig.files[0].set_len(bytes).unwrap();
            let fault = rig.run(1, 3, tenant(1), Action::Read { checksum: sum }).unwrap_err();
            let Fault::Io(error) = fault else { panic!("{fault}") };
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{bytes} bytes");
        }
        rig.stop();
    });
}
