CREATE TABLE IF NOT EXISTS "shop"."strandline_history" (
  sync_run_id bigint IDENTITY(1, 1) PRIMARY KEY, table_name character varying(760) NOT NULL,
  sync_start_timestamp timestamptz NOT NULL, sync_end_timestamp timestamptz,
  watermark_from timestamptz, watermark_to timestamptz,
  rows_inserted bigint, rows_updated bigint, rows_processed bigint,
  sync_status character varying(256) NOT NULL, error_message character varying(65535),
  run_id character varying(256) NOT NULL, pipeline character varying(760) NOT NULL, stage character varying(256) NOT NULL, rows_deleted bigint,
  cursor_from character varying(256), cursor_to character varying(256));

UPDATE "shop"."strandline_history" SET sync_end_timestamp = getdate(), sync_status = 'FAILED', error_message = 'the run ended without saying how (killed?)' WHERE table_name = 'orders' AND stage = 'load:dw' AND pipeline = 'shop' AND sync_status = 'RUNNING';

INSERT INTO "shop"."strandline_history" (run_id, table_name, stage, pipeline, sync_start_timestamp, watermark_from, watermark_to, cursor_from, cursor_to, sync_status) VALUES ('20261115-080000-a', 'orders', 'load:dw', 'shop', getdate(), '2026-11-15 08:00:00.123456', '2026-11-15 08:01:00', '2026-11-15 08:00:00.1234567', '2026-11-15 08:01:00', 'RUNNING');

UPDATE "shop"."strandline_history" SET sync_end_timestamp = getdate(), rows_inserted = 1, rows_updated = 2, rows_deleted = 1, rows_processed = 4, sync_status = 'FAILED', error_message = 'it''s \\ full' WHERE run_id = '20261115-080000-a' AND table_name = 'orders' AND stage = 'load:dw';

