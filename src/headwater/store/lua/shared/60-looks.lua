--[[
  The state of an object, for a call about one object and for a call about several. Packages add stream(K) and
  group(K, name), which return the replies of hw_stream_info and hw_group_info, or nil for no group; and
  queue(K), which returns the reply of hw_queue_stats.
]]
local looks = {}
