//! Mappings, summed by name.

use procmon::{Mapping, MappingKind, ProcError, Procfs, parse_smaps};

const SMAPS: &str = include_str!("fixtures/python_smaps.txt");
const KIB: u64 = 1024;

#[test]
fn mappings_are_summed_by_name() {
    let mappings = parse_smaps(SMAPS).unwrap();
    let names: Vec<(MappingKind, &str)> = mappings
        .iter()
        .map(|mapping| (mapping.kind, mapping.name.as_str()))
        .collect();
    assert_eq!(
        names,
        [
            (
                MappingKind::File,
                "/models/my model (1).safetensors (deleted)"
            ),
            (MappingKind::Heap, "[heap]"),
            (MappingKind::Shmem, "/dev/shm/psm_1 (deleted)"),
            (MappingKind::Anon, "[anon]"),
            (MappingKind::Stack, "[stack]"),
            (MappingKind::File, "/usr/bin/python3.11"),
            (MappingKind::Anon, "[anon:glibc: malloc]"),
            (MappingKind::Special, "[vdso]"),
            (MappingKind::Shmem, "/memfd:arena (deleted)"),
        ]
    );
    assert_eq!(
        mappings[5],
        Mapping {
            kind: MappingKind::File,
            name: "/usr/bin/python3.11".to_owned(),
            mappings: 2,
            size_bytes: 12 * KIB,
            rss_bytes: 12 * KIB,
            pss_bytes: 10 * KIB,
            anon_bytes: 8 * KIB,
            swap_bytes: 0,
        }
    );
    assert_eq!(mappings[3].mappings, 2);
    assert_eq!(mappings[3].size_bytes, (132 + 8192) * KIB);
    assert_eq!(mappings[1].swap_bytes, 12 * KIB);
}

#[test]
fn nothing_mapped_is_no_mapping_and_no_number_is_refused() {
    assert_eq!(parse_smaps("").unwrap(), []);
    let error = parse_smaps(&SMAPS.replacen("4000 kB", "4000 MB", 1)).unwrap_err();
    assert!(
        matches!(&error, ProcError::BadField { field: "Rss", found, .. } if found == "4000 MB"),
        "{error}"
    );
}

/// The sums of the ledger are those of the roll-up, which the kernel adds up by itself. This process's own
/// heap moves between the two reads, so a child that waits is read.
#[test]
fn a_real_process_adds_up() {
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let procfs = Procfs::default();
    let read = || {
        let mappings = procfs.smaps(child.id()).unwrap();
        let rollup = procfs.rollup(child.id()).unwrap();
        let sum: u64 = mappings.iter().map(|mapping| mapping.rss_bytes).sum();
        (sum, rollup.rss_bytes)
    };
    // It may still be starting when it is read first.
    let agree = (0..100).any(|_| {
        let (sum, rollup) = read();
        std::thread::sleep(std::time::Duration::from_millis(10));
        sum == rollup && sum > 0
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(agree);
}
