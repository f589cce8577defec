"""Schema of the tables as numbered steps, applied in order and never edited afterwards.

Columns have the names of the fields in `experience.records`; tuples and dicts are JSON text. There
are no secondary indexes and no keys: a campaign's rows are deleted and inserted in one transaction,
which the index of a key would refuse (FACTS, DuckDB).
"""

from __future__ import annotations

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE heads (campaign VARCHAR NOT NULL, last_seq BIGINT NOT NULL, head VARCHAR NOT NULL);
    CREATE TABLE campaigns (
        id VARCHAR NOT NULL, workload VARCHAR, workload_key VARCHAR, state VARCHAR, trust VARCHAR, preset VARCHAR,
        mind VARCHAR, contract_hash VARCHAR, hardware VARCHAR, software VARCHAR, started_at VARCHAR, ended_at VARCHAR,
        candidates BIGINT, trials_ok BIGINT, trials_failed BIGINT, speedup DOUBLE, speedup_low DOUBLE,
        speedup_high DOUBLE, profile VARCHAR);
    CREATE TABLE directions (
        id VARCHAR NOT NULL, campaign VARCHAR NOT NULL, question VARCHAR, layer VARCHAR, start_kind VARCHAR,
        start VARCHAR, reason VARCHAR, expected_gain DOUBLE, budget BIGINT, closed VARCHAR, lesson VARCHAR, "at" VARCHAR);
    CREATE TABLE candidates (
        id VARCHAR NOT NULL, campaign VARCHAR NOT NULL, workload_key VARCHAR, parent VARCHAR, direction VARCHAR,
        layer VARCHAR, statement VARCHAR, techniques VARCHAR, knobs VARCHAR, base_stack VARCHAR, base_knobs VARCHAR,
        diff_hash VARCHAR, launch_fingerprint VARCHAR, predicted_time DOUBLE, predicted_memory DOUBLE,
        log_ratio DOUBLE, peak_bytes BIGINT, outcome VARCHAR, verdict VARCHAR, reason VARCHAR,
        memory_limit_bytes BIGINT, requested_bytes BIGINT, hardware VARCHAR, software VARCHAR, "at" VARCHAR,
        bundle_of VARCHAR);
    CREATE TABLE trials (
        id VARCHAR NOT NULL, campaign VARCHAR NOT NULL, candidate VARCHAR, kind VARCHAR, arm VARCHAR, block VARCHAR,
        steps BIGINT, outcome VARCHAR, cause VARCHAR, detail VARCHAR, wall_s DOUBLE, step_s DOUBLE, score_s DOUBLE,
        peak_bytes BIGINT, "at" VARCHAR);
    CREATE TABLE entries (
        id VARCHAR NOT NULL, kind VARCHAR, text VARCHAR, campaign VARCHAR, workload VARCHAR, workload_key VARCHAR,
        layer VARCHAR, hardware VARCHAR, software VARCHAR, outcome VARCHAR, "at" VARCHAR, source VARCHAR,
        candidate VARCHAR);
    """,
    """
    ALTER TABLE candidates ADD COLUMN base_commit VARCHAR DEFAULT '';
    ALTER TABLE candidates ADD COLUMN terms VARCHAR DEFAULT '';
    DELETE FROM heads;
    """,  # without their heads all journals are read again, which fills the new columns
    """
    ALTER TABLE entries ADD COLUMN stamp VARCHAR DEFAULT '';
    DELETE FROM heads;
    """,  # entries of no journal get theirs when the tables are opened
    """
    CREATE TABLE retrievals (
        id VARCHAR NOT NULL, campaign VARCHAR NOT NULL, role VARCHAR, query VARCHAR, hits VARCHAR, used VARCHAR,
        changed VARCHAR, about VARCHAR, paid VARCHAR, "at" VARCHAR);
    DELETE FROM heads;
    """,
)
