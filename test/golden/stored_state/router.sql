BEGIN TRANSACTION;
CREATE TABLE decisions (
            kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, digest BLOB NOT NULL,
            PRIMARY KEY (kind, name)
        ) WITHOUT ROWID
        ;
INSERT INTO "decisions" VALUES('canary','','{"plan": "", "shared": {"counted_until": 1}, "state": "off"}',X'E7029A49F49C5B6960D0A5B2C61B1845');
INSERT INTO "decisions" VALUES('drain','a','{"now": false, "text": "new cables"}',X'208DCFEC601B031F1B82D028E162C260');
INSERT INTO "decisions" VALUES('drain','b','{"now": false, "text": ""}',X'4FC1548C98925D11AB441DA1845447C0');
INSERT INTO "decisions" VALUES('drain','prod','{"now": false, "text": ""}',X'76FB93F612456453385FD63F172A7140');
INSERT INTO "decisions" VALUES('parameter','split_percent','{"by": "by anna", "file": 100, "value": 50, "when": "2026-01-02 03:04"}',X'118B47DAB84FDAF295A744262ED5FBEB');
INSERT INTO "decisions" VALUES('verdict','two@2','{"now": true, "text": "rolled back 2026-01-02 03:04: worse", "verdict": "rolled_back", "when": "2026-01-02 03:04"}',X'E7E85798117F7226AED911A026B9F095');
CREATE TABLE episodes (
            number INTEGER PRIMARY KEY, episode TEXT NOT NULL, what TEXT NOT NULL,
            arm TEXT NOT NULL, digest BLOB NOT NULL
        );
INSERT INTO "episodes" VALUES(1,'ep_1','begun','b',X'AF983033693D1DF689EEE5D6769E14FB');
INSERT INTO "episodes" VALUES(2,'ep_1','success','b',X'302E154A7BBA632DB0835ADB67C514DC');
INSERT INTO "episodes" VALUES(3,'ep_2','moved','a',X'B651F3718ACEB34E709805269F555E07');
CREATE TABLE placements (
            number INTEGER PRIMARY KEY, episode TEXT NOT NULL UNIQUE, slot TEXT NOT NULL,
            split_percent INTEGER, moved INTEGER NOT NULL, reason TEXT NOT NULL,
            digest BLOB NOT NULL
        );
INSERT INTO "placements" VALUES(1,'ep_1','b',50,0,'',X'01E3C35A8B23518049027F6BBF6E7ADC');
INSERT INTO "placements" VALUES(2,'ep_2','a',NULL,1,'slot b takes no episodes: ü',X'761578E2191239D76C616BE5C8B2BD72');
CREATE TABLE seal (id INTEGER PRIMARY KEY CHECK (id = 1), digest BLOB NOT NULL);
INSERT INTO "seal" VALUES(1,X'FADC1814EDCE29145FE5FEAFBF195B89');
CREATE TABLE shadow (
            policy TEXT PRIMARY KEY, record TEXT NOT NULL, digest BLOB NOT NULL
        ) WITHOUT ROWID
        ;
INSERT INTO "shadow" VALUES('two@2','{"divergence_count": 2, "divergence_sum": 0.75, "episodes": 2, "latency_sum_ms": 32.5, "observed_s": 2.5, "recent": ["e-1", "e-2"], "samples": 2, "spreads_count": 1, "spreads_sum": 1.5, "trips": 1, "waiver": "anna: tried on the bench"}',X'9572118A82E227CA5E05877E82E9BAAF');
COMMIT;
